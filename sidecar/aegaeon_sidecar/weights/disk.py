"""The disk tier below the host cache: models fetched from afar, one folder each, least recently used out first.

One per node, shared by its sidecars through file locks as the host cache is: who fetches holds a model's lock
exclusively, who may load from it holds it shared, and the kernel drops the locks of the dead.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from aegaeon_native.leases import holders
from aegaeon_sidecar.errors import DiskFullError, FillCancelledError
from aegaeon_sidecar.weights.download import Download, Progress, doubt
from aegaeon_sidecar.weights.remote import Remote

_LOCK = ".lock"
_COMPLETE = ".complete"
_RESERVED = ".reserved"
_SOURCE = ".source"
_NAME = re.compile("[0-9a-f]{32}")  # of an entry; what else lies in the folder is not ours to count or remove
_POLL_S = 0.1


@dataclass(slots=True)
class Stored:
    """A complete model on disk, kept from eviction until `close`."""

    directory: Path
    _lock: int

    def doubt(self, *, damaged: bool) -> None:
        """They cannot be served: the next to ask looks for what has changed at the source since, unless another
        sidecar has a use for them as they are. `damaged`: their bytes are wrong, here or there. To be closed next."""
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (self.directory / _COMPLETE).unlink(missing_ok=True)
            if damaged:
                doubt(self.directory)

    def close(self) -> None:
        os.close(self._lock)


class DiskTier:
    """The node's folder of fetched models, kept below `budget_bytes` over all its sidecars."""

    def __init__(self, folder: Path, budget_bytes: int, sleep: Callable[[float], object]) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._sleep = sleep

    def obtain(self, remote: Remote, progress: Progress, cancelled: Callable[[], bool]) -> Stored:
        """The model at `remote`, fetched if it is not here; a fetch that was broken off goes on where it stopped.

        A complete copy that can be served is used without asking the server: a source that changes must change its
        address. Raises SourceError, DiskFullError and FillCancelledError.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        directory = self._folder / sha256(remote.address.encode()).hexdigest()[:32]
        while (stored := self._claim(directory)) is None:
            with _locked(_lock_file(directory), wait=False) as mine:
                if mine and not _is_complete(directory):
                    self._fetch(directory, remote, progress, cancelled)
            if cancelled():
                raise FillCancelledError(f"{directory}: gave up waiting for another sidecar to fetch it")
            if not mine:
                self._sleep(_POLL_S)
        return stored

    def used_bytes(self) -> int:
        """What is stored, complete or not."""
        return sum(_size(directory) for directory in _entries(self._folder))

    def _fetch(self, directory: Path, remote: Remote, progress: Progress, cancelled: Callable[[], bool]) -> None:
        download = Download(remote, directory, progress, cancelled)
        with _locked(self._folder / _LOCK, wait=True):
            self._make_room(directory, download.total)
        (directory / _SOURCE).write_text(remote.address + "\n")
        download.run(self._sleep)
        (directory / _COMPLETE).touch()

    def _claim(self, directory: Path) -> Stored | None:
        """Keep a complete model from eviction; None when it is not complete, or evicted just now."""
        if not _is_complete(directory):
            return None
        handle = os.open(_lock_file(directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_SH)
        if _is_complete(directory):
            os.utime(directory)
            return Stored(directory, handle)
        os.close(handle)
        return None

    def _make_room(self, directory: Path, nbytes: int) -> None:
        others = [other for other in _entries(self._folder) if other != directory]
        used = sum(_size(other) for other in others)
        for other in sorted(others, key=lambda path: path.stat().st_mtime_ns):
            if used + nbytes > self._budget_bytes:
                used -= _evict(other)
        if used + nbytes > self._budget_bytes:
            raise DiskFullError(
                f"{self._folder}: the model's files need {nbytes} bytes; the disk tier's budget is "
                f"{self._budget_bytes}, of which {used} are taken by models in use; raise it or serve fewer models"
            )
        free = shutil.disk_usage(self._folder).free
        if nbytes - _written(directory) > free:
            raise DiskFullError(f"{self._folder}: the files need {nbytes} bytes, the disk has {free} free; make room")
        directory.mkdir(exist_ok=True)
        (directory / _RESERVED).write_text(str(nbytes))


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
    return [_entry(directory) for directory in sorted(_entries(folder))]


def _entry(directory: Path) -> Entry:
    lock, source = _lock_file(directory), directory / _SOURCE
    return Entry(
        directory,
        source.read_text().strip() if source.exists() else "",
        _written(directory),
        _is_complete(directory),
        tuple(holders(lock)) if lock.exists() else (),
    )


def _entries(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return [path for path in found if _NAME.fullmatch(path.name) and path.is_dir()]


def _evict(directory: Path) -> int:
    """Remove a model that nobody fetches or may load from; returns the bytes freed, 0 when it is in use."""
    with _locked(_lock_file(directory), wait=False) as mine:
        if not mine:
            return 0
        nbytes = _size(directory)
        (directory / _COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(directory)
        return nbytes


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[bool]:
    """Holds the exclusive lock of a file; False when it is another's and we do not wait."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    held = True
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            held = False
        yield held
    finally:
        os.close(handle)


def _lock_file(directory: Path) -> Path:
    return directory.with_suffix(_LOCK)


def _is_complete(directory: Path) -> bool:
    return (directory / _COMPLETE).exists()


def _size(directory: Path) -> int:
    """Bytes that it takes, or will when it is fetched."""
    try:
        reserved = int((directory / _RESERVED).read_text())
    except (FileNotFoundError, ValueError):
        reserved = 0
    return max(reserved, _written(directory))


def _written(directory: Path) -> int:
    total = 0
    for path in directory.iterdir() if directory.is_dir() else ():
        with suppress(FileNotFoundError):  # a part becomes whole just then
            total += path.stat().st_size
    return total
