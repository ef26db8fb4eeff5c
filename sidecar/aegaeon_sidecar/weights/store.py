"""The common part of host cache and disk tier: a folder of entries that the sidecars of a node share.

Each entry has a lock: exclusive for the process that fills or evicts it, shared for readers, and dropped when its
holder dies. A process that makes or evicts entries also holds the folder's lock. Eviction is LRU under a budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from aegaeon_native.leases import try_locked
from aegaeon_sidecar.domain.errors import SidecarError


class Entry(Protocol):
    """An image, or the files of a model. Bytes are as of the call."""

    @property
    def lock(self) -> Path:
        """The file whose lock marks the entry as used."""

    def rank(self) -> tuple[bool, int]:
        """The order of eviction, lowest first: (complete, time of last use)."""

    def claimed_bytes(self) -> int:
        """Bytes counted in the budget: those stored or, if more, those reserved."""

    def stored_bytes(self) -> int:
        """Bytes that its removal frees in the file system."""

    def remove(self) -> None:
        """End it. The caller holds its lock alone."""


class Limits(Protocol):
    """The limits to keep, and the errors that report them with numbers."""

    @property
    def budget_bytes(self) -> int:
        """The budget of all entries."""

    def free_bytes(self) -> int:
        """Free bytes of the file system, without those reserved by other entries."""

    def over_budget(self, nbytes: int, used_bytes: int) -> SidecarError:
        """`used_bytes`: of entries that may not be evicted."""

    def no_space(self, nbytes: int) -> SidecarError:
        """The file system is too full, whatever is evicted."""


def make_room(limits: Limits, nbytes: int, *, missing: int, used: int, victims: Iterable[Entry]) -> int:
    """Evict `victims`, those used longest ago first, until there is room beside the rest; the folder's lock is held.

    `nbytes`: what the new entry claims; `missing`: what of that is not in the file system yet; `used`: what all others
    claim. Returns the bytes left then. Nothing is evicted for what finds no room in the end: raises what `limits` says.
    """
    if nbytes > limits.budget_bytes:
        raise limits.over_budget(nbytes, used)
    free = limits.free_bytes()
    with ExitStack() as locks:
        evicted: list[Entry] = []
        for victim in _in_order(victims):
            if limits.budget_bytes - used >= nbytes and free >= missing:
                break
            if locks.enter_context(try_locked(victim.lock)):
                evicted.append(victim)
                used -= victim.claimed_bytes()
                free += victim.stored_bytes()
        if limits.budget_bytes - used < nbytes:
            raise limits.over_budget(nbytes, used)
        if free < missing:
            raise limits.no_space(nbytes)
        for victim in evicted:
            victim.remove()
    return min(limits.budget_bytes - used - nbytes, free - missing)


def evict_one(victims: Iterable[Entry]) -> bool:
    """Evict the one used longest ago that no process uses now; False when there is none. The folder's lock is held."""
    return any(map(evict, _in_order(victims)))


def evict(entry: Entry) -> bool:
    """Remove the entry unless a process uses it; returns True when it was removed. The folder's lock is held."""
    with try_locked(entry.lock) as locked:
        if locked:
            entry.remove()
        return locked


def _in_order(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda entry: entry.rank())
