"""The disk tier below the host cache: models fetched from remote sources, one folder each, evicted in LRU order.

The sidecars of a node share it through file locks, like the host cache: the process that fetches a model holds its
lock exclusively, a process that may load it holds the lock shared, and the kernel drops the locks of dead processes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native.leases import holders, share, try_lock, try_locked
from aegaeon_sidecar.domain.errors import AbsentError, DiskFullError, FillCancelledError, TooLargeError
from aegaeon_sidecar.weights.addresses import folder_name
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.download import Download, Progress, doubt
from aegaeon_sidecar.weights.model_folder import ModelFolder, model_folders
from aegaeon_sidecar.weights.reservation import Claim, Reservation

ANY_ROOM = Claim()
_POLL_S = 0.1
_NOT_AHEAD = "the disk tier is full; what is fetched ahead evicts no model of the catalog"


@dataclass(slots=True)
class Stored:
    """A complete model on disk. It is kept from eviction until `close`, and again while it is read."""

    directory: Path
    _lock: int | None

    @property
    def is_there(self) -> bool:
        """True while it is not evicted."""
        return ModelFolder(self.directory).is_complete()

    def touch(self) -> None:
        """Mark it as in use, by this or another sidecar."""
        ModelFolder(self.directory).touch()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep it while one thread at a time reads it. Raises AbsentError when it was evicted."""
        taken = self._lock is None
        if taken:
            self._lock = _pin(ModelFolder(self.directory))
        if self._lock is None:
            raise AbsentError("its files were evicted from this node's disk; they are fetched again")
        try:
            yield
        finally:
            if taken:
                self.close()

    def doubt(self, *, damaged: bool) -> None:
        """Mark its files as unservable: the next fetch compares them with the source, unless another sidecar uses them
        as they are. `damaged`: their bytes are wrong. The caller closes it next."""
        if self._lock is None or not try_lock(self._lock, fcntl.LOCK_EX):
            return
        ModelFolder(self.directory).unpublish()
        if damaged:
            doubt(self.directory)
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # others need not wait for `close`

    def close(self) -> None:
        """Others may make it go. Idempotent."""
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None


class DiskTier:
    """The node's folder of fetched models, kept below `budget_bytes` over all its sidecars.

    What is fetched ahead of requests evicts no model of the catalog. Once one finds no room so, none is fetched ahead
    any more: to learn from its server how large each of a thousand is would be in vain.
    """

    def __init__(self, folder: Path, budget_bytes: int, sleep: Callable[[float], object]) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._sleep = sleep
        self._full = False

    def reconsider(self) -> None:
        """The catalog has changed: there may be room again for what is fetched ahead."""
        self._full = False

    def changed_ns(self) -> int:
        """The time at which a model was last added or removed, nanoseconds of the file system's clock; 0: there is no
        folder yet."""
        return self._folder.stat().st_mtime_ns if self._folder.exists() else 0

    def obtain(
        self, remote: Guarded, progress: Progress, cancelled: Callable[[], bool], claim: Claim = ANY_ROOM
    ) -> Stored:
        """Return the model at `remote`, fetched if it is not on disk; an interrupted fetch resumes where it stopped.

        A complete copy that can be served is used without asking the server: a source that changes must change its
        address. Raises SourceError, DiskFullError and FillCancelledError.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        model = ModelFolder(self._folder / folder_name(remote.key))
        while (lock := _pin(model)) is None:
            with try_locked(model.lock) as locked:
                if locked and not model.is_complete():
                    self._fetch(model, remote, claim, progress, cancelled)
            if cancelled():
                raise FillCancelledError(f"{model.directory}: gave up waiting for another sidecar to fetch it")
            if not locked:
                self._sleep(_POLL_S)
        return Stored(model.directory, lock)

    def used_bytes(self) -> int:
        """Bytes stored, complete or not."""
        return sum(model.claimed_bytes() for model in model_folders(self._folder))

    def _fetch(
        self, model: ModelFolder, remote: Guarded, claim: Claim, progress: Progress, cancelled: Callable[[], bool]
    ) -> None:
        """Its lock is held alone."""
        room = Reservation(self._folder, model, self._budget_bytes, claim, self._sleep, cancelled)
        try:
            if claim.ahead and self._full:
                raise DiskFullError(_NOT_AHEAD)
            download = Download(remote, model.directory, room, progress, cancelled)
            room.need(download.least_bytes)
        except DiskFullError as error:
            self._full |= claim.ahead and not isinstance(error, TooLargeError)
            raise
        finally:
            model.end_lock()
        model.note_source(remote.address)
        download.run(self._sleep)
        model.publish()


def _pin(model: ModelFolder) -> int | None:
    """A lock that keeps a complete model from eviction; None when it is not complete, or evicted just now."""
    if not model.is_complete():
        return None
    handle = share(model.lock)
    if model.is_complete():
        model.touch()
        return handle
    os.close(handle)
    return None


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model on disk, for `aegaeon doctor`. `pids`: processes that fetch it, or pin it once it is `complete`."""

    directory: Path
    source: str
    nbytes: int
    complete: bool
    pids: tuple[int, ...]


def survey(folder: Path) -> list[ModelOnDisk]:
    """Every model in a folder of a disk tier, by its name."""
    return [_entry(model) for model in sorted(model_folders(folder), key=lambda model: model.directory)]


def _entry(model: ModelFolder) -> ModelOnDisk:
    pids = tuple(holders(model.lock))
    return ModelOnDisk(model.directory, model.source, model.stored_bytes(), model.is_complete(), pids)
