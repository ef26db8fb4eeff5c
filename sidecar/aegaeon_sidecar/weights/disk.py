"""The disk tier below the host cache: models fetched from afar, one folder each, least recently used out first.

One per node, shared by its sidecars through file locks as the host cache is: who fetches holds a model's lock
exclusively, who may load from it holds it shared, and the kernel drops the locks of the dead.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aegaeon_native.leases import holders
from aegaeon_sidecar.domain.errors import FillCancelledError
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.download import Download, Progress, doubt
from aegaeon_sidecar.weights.entries import (
    COMPLETE,
    claimed_bytes,
    entries,
    is_complete,
    lock_file,
    locked,
    stored_bytes,
)
from aegaeon_sidecar.weights.image import try_lock
from aegaeon_sidecar.weights.room import Room

_SOURCE = ".source"
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
        (self.directory / COMPLETE).unlink(missing_ok=True)
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
        directory = self._folder / sha256(remote.key.encode()).hexdigest()[:32]
        while (stored := self._claim(directory)) is None:
            with locked(lock_file(directory)) as mine:
                if mine and not is_complete(directory):
                    self._fetch(directory, remote, progress, cancelled)
            if cancelled():
                raise FillCancelledError(f"{directory}: gave up waiting for another sidecar to fetch it")
            if not mine:
                self._sleep(_POLL_S)
        return stored

    def used_bytes(self) -> int:
        """What is stored, complete or not."""
        return sum(claimed_bytes(directory) for directory in entries(self._folder))

    def _fetch(self, directory: Path, remote: Guarded, progress: Progress, cancelled: Callable[[], bool]) -> None:
        room = Room(self._folder, directory, self._budget_bytes, self._sleep, cancelled)
        download = Download(remote, directory, room, progress, cancelled)
        room.need(download.least_bytes)
        (directory / _SOURCE).write_text(remote.address + "\n")
        download.run(self._sleep)
        room.end_reservation()
        (directory / COMPLETE).touch()

    def _claim(self, directory: Path) -> Stored | None:
        """Keep a complete model from eviction; None when it is not complete, or evicted just now."""
        if not is_complete(directory):
            return None
        handle = os.open(lock_file(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_SH)
        if is_complete(directory):
            os.utime(directory)
            return Stored(directory, handle)
        os.close(handle)
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """A model on disk, for people. `nbytes`: there are; `pids`: who fetches it, or pins it when it is `complete`."""

    directory: Path
    source: str
    nbytes: int
    complete: bool
    pids: tuple[int, ...]


def survey(folder: Path) -> list[Entry]:
    """Every model in a folder of a disk tier, by its name."""
    return [_entry(directory) for directory in sorted(entries(folder))]


def _entry(directory: Path) -> Entry:
    lock, source = lock_file(directory), directory / _SOURCE
    return Entry(
        directory,
        source.read_text().strip() if source.exists() else "",
        stored_bytes(directory),
        is_complete(directory),
        tuple(holders(lock)) if lock.exists() else (),
    )
