"""Reserves disk tier space for one model before the first byte is written, under a budget shared by a node's sidecars.

Eviction order: interrupted fetches, the oldest first, then models in LRU order. A model that is read is locked, and one
that was used in the last seconds counts as in use.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native.leases import try_locked
from aegaeon_sidecar.domain.errors import DiskFullError, FillCancelledError, TooLargeError
from aegaeon_sidecar.weights.model_folder import ModelFolder, model_folders
from aegaeon_sidecar.weights.store import evict_one, make_room

_LOCK = ".lock"
_POLL_S = 0.05
_IDLE_POLL_S = 0.25
_STEP_BYTES = 64 << 20  # reserved ahead when a source does not announce sizes


@dataclass(frozen=True, slots=True)
class Claim:
    """Means by which a fetch may make room: evict models in folders outside `spare` that were not used for `idle_s`,
    and wait up to `patience_s` until enough of them are idle. `ahead`: no request waits for it."""

    spare: frozenset[str] = frozenset()
    idle_s: float = 0.0
    patience_s: float = 0.0
    ahead: bool = False


_IDLE_S = 5.0  # what has just come is used once before others make it go
ON_DEMAND = Claim(idle_s=_IDLE_S, patience_s=60.0)
"""requests wait for it"""


def fetched_ahead(spare: frozenset[str]) -> Claim:
    """The claim of a fetch that no request waits for; models in folders of these names are kept."""
    return Claim(spare, _IDLE_S, ahead=True)


class Reservation:
    """The space reserved for `model`. `need` grows with it; nothing beyond is written. See store.Limits."""

    def __init__(
        self,
        folder: Path,
        model: ModelFolder,
        budget_bytes: int,
        claim: Claim,
        sleep: Callable[[float], object],
        cancelled: Callable[[], bool],
    ) -> None:
        self._folder = folder
        self._model = model
        self.budget_bytes = budget_bytes
        self._claim = claim
        self._sleep = sleep
        self._cancelled = cancelled
        self._reserved_bytes = -1

    def need(self, nbytes: int) -> None:
        """The files will have so many bytes in all. Raises DiskFullError (no room for them) and FillCancelledError."""
        patience_s = self._claim.patience_s
        while nbytes > self._reserved_bytes:
            try:
                self._reserve(nbytes)
            except DiskFullError as error:
                if patience_s <= 0 or isinstance(error, TooLargeError):
                    raise
                if self._cancelled():
                    raise FillCancelledError(f"{self._model.directory}: gave up waiting for room") from error
                patience_s -= _IDLE_POLL_S
                self._sleep(_IDLE_POLL_S)

    def _reserve(self, nbytes: int) -> None:
        grows = self._reserved_bytes >= 0
        with self._alone():
            left = self._make_room(nbytes)
            self._reserved_bytes = nbytes + (min(_STEP_BYTES, left) if grows else 0)
            self._model.reserve(self._reserved_bytes)

    def free_some(self) -> bool:
        """The disk is full of what others have written. Evict one entry; False when there is none to evict."""
        with self._alone():
            return evict_one(self._victims())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other fetches of the node from making room meanwhile; hundreds may wait, and a stop waits for none of
        them."""
        while True:
            with try_locked(self._folder / _LOCK) as locked:
                if locked:
                    yield
                    return
            if self._cancelled():
                raise FillCancelledError(f"{self._model.directory}: gave up waiting to make room")
            self._sleep(_POLL_S)

    def _make_room(self, nbytes: int) -> int:
        rivals = self._others()
        missing = max(nbytes - self._model.stored_bytes(), 0)
        used = sum(other.claimed_bytes() for other in rivals)
        return make_room(self, nbytes, missing=missing, used=used, victims=self._victims())

    def _victims(self) -> list[ModelFolder]:
        """Interrupted fetches, and models that are idle."""
        return [other for other in self._others() if not other.is_complete() or self._may_go(other)]

    def _may_go(self, other: ModelFolder) -> bool:
        return other.directory.name not in self._claim.spare and other.is_idle(self._claim.idle_s)

    def _others(self) -> list[ModelFolder]:
        return [other for other in model_folders(self._folder) if other != self._model]

    def free_bytes(self) -> int:
        """See Limits."""
        return shutil.disk_usage(self._folder).free

    def over_budget(self, nbytes: int, used_bytes: int) -> DiskFullError:
        """See Limits."""
        kind = TooLargeError if nbytes > self.budget_bytes else DiskFullError
        return kind(
            f"{self._folder}: the model's files need {nbytes} bytes; the disk tier's budget is "
            f"{self.budget_bytes}, of which {used_bytes} are taken by models in use; raise it or serve fewer models"
        )

    def no_space(self, nbytes: int) -> DiskFullError:
        """See Limits."""
        free = self.free_bytes()
        return DiskFullError(f"{self._folder}: the files need {nbytes} bytes, the disk has {free} free; make room")
