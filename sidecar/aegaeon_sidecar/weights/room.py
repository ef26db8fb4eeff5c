"""Room in the disk tier for one model: reserved before a byte is written, under a budget over all sidecars of the node.

Who makes room: fetches that were broken off, the oldest first, then the models used longest ago.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aegaeon_sidecar.domain.errors import DiskFullError, FillCancelledError
from aegaeon_sidecar.weights.entries import (
    LOCK,
    RESERVED,
    claimed_bytes,
    entries,
    evict,
    is_complete,
    is_idle,
    locked,
    stored_bytes,
)

_POLL_S = 0.05
_STEP_BYTES = 64 << 20  # that are reserved ahead where a source does not tell sizes


class Room:
    """What `directory` may hold. `need` grows with it; nothing is to be written beyond."""

    def __init__(
        self,
        folder: Path,
        directory: Path,
        budget_bytes: int,
        sleep: Callable[[float], object],
        cancelled: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._directory = directory
        self._budget_bytes = budget_bytes
        self._sleep = sleep
        self._cancelled = cancelled
        self._reserved_bytes = -1

    def need(self, nbytes: int) -> None:
        """The files will have so many bytes in all. Raises DiskFullError (no room for them) and FillCancelledError."""
        if nbytes <= self._reserved_bytes:
            return
        grows = self._reserved_bytes >= 0
        with self._alone():
            left = self._make_room(nbytes)
            self._reserved_bytes = nbytes + (min(_STEP_BYTES, left) if grows else 0)
            self._directory.mkdir(exist_ok=True)
            (self._directory / RESERVED).write_text(str(self._reserved_bytes))

    def end_reservation(self) -> None:
        """All is written: its size on disk counts from here on."""
        (self._directory / RESERVED).write_text("0")

    def free_some(self) -> bool:
        """The disk is full of what others have written. Evict one entry; False when there is none to evict."""
        with self._alone():
            return any(evict(victim) for victim in self._victims())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other fetch of the node makes room meanwhile; hundreds may want to, and a stop waits for none of them."""
        while True:
            with locked(self._folder / LOCK) as mine:
                if mine:
                    yield
                    return
            if self._cancelled():
                raise FillCancelledError(f"{self._directory}: gave up waiting to make room")
            self._sleep(_POLL_S)

    def _make_room(self, nbytes: int) -> int:
        """Returns the bytes that are left of budget and disk beside them."""
        used = sum(claimed_bytes(other) for other in self._others())
        ours = stored_bytes(self._directory)
        if nbytes > self._budget_bytes:
            raise self._over_budget(nbytes, used)
        if (left := self._left(nbytes, used, ours)) >= 0:
            return left
        victims = [victim for victim in self._victims() if is_idle(victim)]
        kept = used - sum(map(claimed_bytes, victims))
        if nbytes + kept > self._budget_bytes:  # nothing goes for what finds no room in the end
            raise self._over_budget(nbytes, kept)
        if nbytes - ours > shutil.disk_usage(self._folder).free + sum(map(stored_bytes, victims)):
            raise self._disk_full(nbytes)
        for victim in victims:
            used -= evict(victim)
            if (left := self._left(nbytes, used, ours)) >= 0:
                return left
        raise self._over_budget(nbytes, used) if used + nbytes > self._budget_bytes else self._disk_full(nbytes)

    def _left(self, nbytes: int, used: int, ours: int) -> int:
        free = shutil.disk_usage(self._folder).free
        return min(self._budget_bytes - used - nbytes, free - max(nbytes - ours, 0))

    def _others(self) -> list[Path]:
        return [other for other in entries(self._folder) if other != self._directory]

    def _victims(self) -> Iterator[Path]:
        ages = [(is_complete(other), other.stat().st_mtime_ns, other) for other in self._others()]
        return (other for _, _, other in sorted(ages))

    def _over_budget(self, nbytes: int, used: int) -> DiskFullError:
        return DiskFullError(
            f"{self._folder}: the model's files need {nbytes} bytes; the disk tier's budget is "
            f"{self._budget_bytes}, of which {used} are taken by models in use; raise it or serve fewer models"
        )

    def _disk_full(self, nbytes: int) -> DiskFullError:
        free = shutil.disk_usage(self._folder).free
        return DiskFullError(f"{self._folder}: the files need {nbytes} bytes, the disk has {free} free; make room")
