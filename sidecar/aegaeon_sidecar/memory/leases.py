"""Leases on host tier blocks that other sidecars may read: granted with a handle, recalled before the blocks are used.

A lease is a slot of a table of events beside the segment. The owner ends it by setting the event; a reader first locks
the slot's byte, then checks the event. So either the reader sees that the lease has ended, or the owner sees the
reader, and the blocks wait until the byte is free: the reader's copy has ended, or the reader has died.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native import Event, EventTable
from aegaeon_native.leases import ByteLocks
from aegaeon_sidecar.domain.errors import StaleError

SLOTS = 1 << 14  # sequences of one host tier that may be lent at a time; 64 KiB


@dataclass(slots=True, eq=False)
class Loan:
    """Blocks that were reclaimed while a process still reads them."""

    event: Event
    kv_shape: str
    blocks: list[int]
    release: Callable[[], object]


class Lending:
    """The owner's side. Guarded by the engine's lock."""

    def __init__(self, path: Path) -> None:
        """Make the table. Raises NativeError when the file cannot be had."""
        self._table = EventTable.create(str(path), SLOTS)
        self._locks = ByteLocks(path)
        self._recalled: list[Loan] = []

    def lend(self) -> Event:
        """A fresh lease, to go into a handle; over once its event is set. Raises NativeError when all are out."""
        return self._table.event()

    def recall(self, event: Event, kv_shape: str, blocks: list[int], release: Callable[[], object]) -> None:
        """End a lease and `release` its blocks, now or when the last reader has left them."""
        event.set()
        self._recalled.append(Loan(event, kv_shape, blocks, release))
        self.reclaim()

    def reclaim(self) -> int:
        """Release what is not read any more; returns how many recalled leases are still being read."""
        for loan in self._recalled[:]:
            if not self._locks.is_shared(loan.event.handle[0]):
                self._recalled.remove(loan)
                loan.release()
        return len(self._recalled)

    def owned(self) -> Iterator[tuple[str, list[int]]]:
        """(KV shape, blocks) of every recalled lease: of no sequence, and not free yet."""
        return ((loan.kv_shape, loan.blocks) for loan in self._recalled)

    def close(self) -> None:
        """End all leases and remove the file. What a reader has mapped stays with it. Idempotent."""
        self._recalled.clear()
        self._locks.close()
        self._table.close()


class Borrowing:
    """The reader's side of one segment's leases."""

    def __init__(self, path: Path) -> None:
        """Raises NativeError or OSError when there is no such table."""
        self._table = EventTable.attach(str(path))
        self._locks = ByteLocks(path)

    @contextmanager
    def reading(self, slot: int, generation: int) -> Iterator[None]:
        """Keep a lease's blocks as they are meanwhile. Raises StaleError when it is over already."""
        self._locks.share(slot)
        try:
            if self._table.open(slot, generation).done:
                raise StaleError("the blocks of the handle were taken back by their sidecar; the sequence moved on")
            yield
        finally:
            self._locks.release(slot)

    def close(self) -> None:
        self._locks.close()
        self._table.close()
