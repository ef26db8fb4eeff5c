"""Reserves disk tier space for one model before the first byte is written, under a budget shared by a node's sidecars.

Eviction order: interrupted fetches, the oldest first, then models in LRU order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aegaeon_native.leases import try_locked
from aegaeon_sidecar.domain.errors import DiskFullError, FillCancelledError
from aegaeon_sidecar.weights.model_folder import ModelFolder, model_folders
from aegaeon_sidecar.weights.store import evict_one, make_room

_LOCK = ".lock"
_POLL_S = 0.05
_STEP_BYTES = 64 << 20  # that are reserved ahead where a source does not tell sizes


class Room:
    """What `model` may hold. `need` grows with it; nothing is to be written beyond. See store.Limits."""

    def __init__(
        self,
        folder: Path,
        model: ModelFolder,
        budget_bytes: int,
        sleep: Callable[[float], object],
        cancelled: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._model = model
        self.budget_bytes = budget_bytes
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
            self._model.reserve(self._reserved_bytes)

    def free_some(self) -> bool:
        """The disk is full of what others have written. Evict one entry; False when there is none to evict."""
        with self._alone():
            return evict_one(self._others())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other fetch of the node makes room meanwhile; hundreds may want to, and a stop waits for none of them."""
        while True:
            with try_locked(self._folder / _LOCK) as mine:
                if mine:
                    yield
                    return
            if self._cancelled():
                raise FillCancelledError(f"{self._model.directory}: gave up waiting to make room")
            self._sleep(_POLL_S)

    def _make_room(self, nbytes: int) -> int:
        others = self._others()
        missing = max(nbytes - self._model.stored_bytes(), 0)
        used = sum(other.claimed_bytes() for other in others)
        return make_room(self, nbytes, missing=missing, used=used, victims=others)

    def _others(self) -> list[ModelFolder]:
        return [other for other in model_folders(self._folder) if other != self._model]

    def free_bytes(self) -> int:
        """See Limits."""
        return shutil.disk_usage(self._folder).free

    def over_budget(self, nbytes: int, used_bytes: int) -> DiskFullError:
        """See Limits."""
        return DiskFullError(
            f"{self._folder}: the model's files need {nbytes} bytes; the disk tier's budget is "
            f"{self.budget_bytes}, of which {used_bytes} are taken by models in use; raise it or serve fewer models"
        )

    def no_space(self, nbytes: int) -> DiskFullError:
        """See Limits."""
        free = self.free_bytes()
        return DiskFullError(f"{self._folder}: the files need {nbytes} bytes, the disk has {free} free; make room")
