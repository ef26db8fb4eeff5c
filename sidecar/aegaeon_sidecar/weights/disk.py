"""The disk tier below the host cache: models fetched from remote sources, one folder each, evicted in LRU order.

The sidecars of a node share it through file locks, like the host cache: the process that fetches a model holds its
lock exclusively, a process that may load it holds the lock shared, and the kernel drops the locks of dead processes.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aegaeon_native.leases import holders, share, try_lock, try_locked
from aegaeon_sidecar.domain.errors import FillCancelledError
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.download import Download, Progress, doubt
from aegaeon_sidecar.weights.model_folder import ModelFolder, model_folders
from aegaeon_sidecar.weights.room import Room

_POLL_S = 0.1


@dataclass(slots=True)
class Stored:
    """A complete model on disk, kept from eviction until `close`."""

    directory: Path
    _lock: int

    def doubt(self, *, damaged: bool) -> None:
        """They cannot be served: the next to ask looks for what has changed at the source since, unless another
        sidecar has a use for them as they are. `damaged`: their bytes are wrong, here or there. To be closed next."""
        if not try_lock(self._lock, fcntl.LOCK_EX):
            return
        ModelFolder(self.directory).unpublish()
        if damaged:
            doubt(self.directory)
        fcntl.flock(self._lock, fcntl.LOCK_UN)  # others need not wait for `close`

    def close(self) -> None:
        os.close(self._lock)


class DiskTier:
    """The node's folder of fetched models, kept below `budget_bytes` over all its sidecars."""

    def __init__(self, folder: Path, budget_bytes: int, sleep: Callable[[float], object]) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._sleep = sleep

    def obtain(self, remote: Guarded, progress: Progress, cancelled: Callable[[], bool]) -> Stored:
        """The model at `remote`, fetched if it is not here; a fetch that was broken off goes on where it stopped.

        A complete copy that can be served is used without asking the server: a source that changes must change its
        address. Raises SourceError, DiskFullError and FillCancelledError.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        model = ModelFolder(self._folder / sha256(remote.key.encode()).hexdigest()[:32])
        while (stored := _pin(model)) is None:
            with try_locked(model.lock) as mine:
                if mine and not model.is_complete():
                    self._fetch(model, remote, progress, cancelled)
            if cancelled():
                raise FillCancelledError(f"{model.directory}: gave up waiting for another sidecar to fetch it")
            if not mine:
                self._sleep(_POLL_S)
        return stored

    def used_bytes(self) -> int:
        """What is stored, complete or not."""
        return sum(model.claimed_bytes() for model in model_folders(self._folder))

    def _fetch(self, model: ModelFolder, remote: Guarded, progress: Progress, cancelled: Callable[[], bool]) -> None:
        """Its lock is held alone."""
        room = Room(self._folder, model, self._budget_bytes, self._sleep, cancelled)
        try:
            download = Download(remote, model.directory, room, progress, cancelled)
            room.need(download.least_bytes)
        finally:
            model.end_lock()
        model.note_source(remote.address)
        download.run(self._sleep)
        model.publish()


def _pin(model: ModelFolder) -> Stored | None:
    """Keep a complete model from eviction; None when it is not complete, or evicted just now."""
    if not model.is_complete():
        return None
    handle = share(model.lock)
    if model.is_complete():
        model.touch()
        return Stored(model.directory, handle)
    os.close(handle)
    return None


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model on disk, for people. `nbytes`: there are; `pids`: who fetches it, or pins it when it is `complete`."""

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
