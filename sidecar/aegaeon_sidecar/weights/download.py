"""Downloads one model's files into a folder: resumable at any byte, verified, and renamed only when complete."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from io import FileIO
from pathlib import Path
from typing import Any

from aegaeon_proto.outbound.client import CHUNK_BYTES
from aegaeon_sidecar.domain.errors import DiskFullError, FillCancelledError, SourceError
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.remote import BrokenOffError, PastEndError, RemoteFile
from aegaeon_sidecar.weights.reservation import Reservation

_PART = ".part"
_MANIFEST = ".manifest.json"
_PAUSES_S = (0.1, 0.5, 2.0, 8.0, 20.0)  # between tries that bring nothing new, or less than
_PROGRESS_BYTES = 512 << 10
_NOTES_BYTES = 4096  # whose it is, and that it is complete
_NOTICE_S = 0.5  # after as much of a pause a cancelled download is noticed
_FULL = (errno.ENOSPC, errno.EDQUOT)

Progress = Callable[[int, int], None]


class Download:
    """Fetches the missing files of a model into the caller's folder. The list of files is requested when it is made."""

    def __init__(
        self, remote: Guarded, directory: Path, room: Reservation, progress: Progress, cancelled: Callable[[], bool]
    ) -> None:
        """Asks the server what there is. Raises SourceError."""
        self._remote = remote
        self._directory = directory
        self._room = room
        self._progress = progress
        self._cancelled = cancelled
        try:
            self._files = remote.files()
        except BrokenOffError as error:
            raise SourceError(
                f"{remote.address} cannot be reached: {error}; check the network", error.retry_after_s
            ) from error
        self.total = sum(max(file.nbytes, 0) for file in self._files)
        self._notes = json.dumps({file.name: asdict(file) for file in self._files})
        self.least_bytes = self.total + 2 * len(self._notes) + _NOTES_BYTES
        """that it takes on disk: of the files whose size is known, and notes about all"""
        self._unlisted_bytes = 0
        self._done = 0
        self._pauses = iter(_PAUSES_S)
        self._furthest = 0

    def run(self, sleep: Callable[[float], object]) -> None:
        """Raises SourceError (a hash is wrong, the server is gone), DiskFullError or FillCancelledError.

        After any of them, and after a kill, the next run goes on with the bytes that are there.
        """
        try:
            self._directory.mkdir(exist_ok=True)
            self._forget_other_versions()
            for file in self._files:
                self._fetch(file, sleep)
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(f"{self._directory}: the disk is full; {self.total} bytes are needed") from error
            raise SourceError(f"{self._directory}: cannot be written: {error.strerror}; check the disk") from error

    def _forget_other_versions(self) -> None:
        """Bytes of a file that has changed since on the server are of no use."""
        manifest = self._directory / _MANIFEST
        now = json.loads(self._notes)
        before = _manifest(self._directory)
        for name in before.keys() | now.keys():
            if before.get(name) != now.get(name):
                (self._directory / name).unlink(missing_ok=True)
                _part(self._directory, name).unlink(missing_ok=True)
        fresh = manifest.with_suffix(".new")
        fresh.write_text(self._notes)
        fresh.rename(manifest)

    def _fetch(self, file: RemoteFile, sleep: Callable[[float], object]) -> None:
        path, part = self._directory / file.name, _part(self._directory, file.name)
        if path.exists():
            nbytes = path.stat().st_size
            self._unlisted_bytes += nbytes if file.nbytes < 0 else 0
            self._advance(nbytes)
            return
        part.parent.mkdir(exist_ok=True)  # of a name with a folder
        with part.open("ab+", buffering=0) as target:
            check = self._bring(file, target, sleep)
            os.fsync(target.fileno())
        wrong = check.verdict()
        if wrong:
            part.unlink()
            raise SourceError(f"{self._remote.address}/{file.name}: {wrong}; it will be fetched again")
        part.rename(path)

    def _bring(self, file: RemoteFile, target: FileIO, sleep: Callable[[float], object]) -> _Check:
        """Go on with what is in `target` until all is there."""
        check = _Check(file)
        target.seek(0)
        while chunk := target.read(CHUNK_BYTES):
            self._take(file, check, chunk)
        while True:
            try:
                self._stream(file, target, check)
                return check
            except PastEndError:  # where no size is given, only the whole file once more can tell that it is whole
                self._begin_anew(file, check, target)
                check = _Check(file)
            except BrokenOffError as error:
                self._pause(file, error, sleep)

    def _stream(self, file: RemoteFile, target: FileIO, check: _Check) -> None:
        if check.done and check.done == file.nbytes:
            return
        for chunk in self._remote.read(file, check.done):
            if self._cancelled():
                raise FillCancelledError(f"{self._remote.address}: fetching was cancelled")
            if 0 <= file.nbytes < check.done + len(chunk):
                where = f"{self._remote.address}/{file.name}"
                raise SourceError(f"{where}: sends more than the announced {file.nbytes} bytes")
            self._write(file, target, chunk)
            self._take(file, check, chunk)
        if 0 <= check.done < file.nbytes:
            raise BrokenOffError(f"{self._remote.address}/{file.name}: {check.done} of {file.nbytes} bytes arrived")

    def _write(self, file: RemoteFile, target: FileIO, chunk: bytes) -> None:
        """Write only what fits. On a full disk other entries are evicted first, as for the budget."""
        if file.nbytes < 0:
            try:
                self._room.need(self.least_bytes + self._unlisted_bytes + len(chunk))
            except DiskFullError:
                target.truncate(0)  # it may have no end: what came of it is of no use
                raise
        left = memoryview(chunk)
        while left:
            try:
                left = left[target.write(left) :]
            except OSError as error:
                if error.errno not in _FULL or not self._room.free_some():
                    raise

    def _begin_anew(self, file: RemoteFile, check: _Check, target: FileIO) -> None:
        self._advance(-check.done)
        self._unlisted_bytes -= check.done if file.nbytes < 0 else 0
        target.truncate(0)

    def _pause(self, file: RemoteFile, error: BrokenOffError, sleep: Callable[[float], object]) -> None:
        """A source that breaks off again and again has to bring something in between. One that is to be left in peace
        for long does not keep others of its server waiting meanwhile."""
        if self._done >= self._furthest + _PROGRESS_BYTES:
            self._furthest, self._pauses = self._done, iter(_PAUSES_S)
        pause_s = next(self._pauses, None)
        if pause_s is None or error.retry_after_s > _PAUSES_S[-1]:
            raise SourceError(f"{error}; check the network", error.retry_after_s) from error
        pause_s = max(pause_s, error.retry_after_s)
        while pause_s > 0:
            if self._cancelled():
                raise FillCancelledError(f"{self._remote.address}: fetching was cancelled")
            sleep(min(pause_s, _NOTICE_S))
            pause_s -= _NOTICE_S

    def _take(self, file: RemoteFile, check: _Check, chunk: bytes) -> None:
        check.update(chunk)
        self._unlisted_bytes += len(chunk) if file.nbytes < 0 else 0
        self._advance(len(chunk))

    def _advance(self, nbytes: int) -> None:
        self._done += nbytes
        self._progress(self._done, self.total)


def doubt(directory: Path) -> None:
    """Distrust the bytes in a folder: files with a checksum become partial downloads, which are verified again; others
    are removed."""
    for name, known in _manifest(directory).items():
        file = directory / name
        if file.exists() and RemoteFile(**known).checksum:
            file.rename(_part(directory, name))
        file.unlink(missing_ok=True)


def _part(directory: Path, name: str) -> Path:
    return directory / (name + _PART)


def _manifest(directory: Path) -> dict[str, Any]:
    """Facts about each file when the folder was last filled."""
    try:
        known: dict[str, Any] = json.loads((directory / _MANIFEST).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return known


class _Check:
    """Counts and hashes a file's bytes as they pass."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._hash = _hash_of(file)
        self.done = 0

    def update(self, chunk: bytes) -> None:
        self._hash.update(chunk)
        self.done += len(chunk)

    def verdict(self) -> str:
        """The fault of the complete file; "" when it is correct."""
        if self._file.nbytes not in (-1, self.done):
            return f"{self.done} bytes arrived, {self._file.nbytes} were announced"
        promised = self._file.checksum
        if promised and self._hash.hexdigest() != promised:
            return f"its {self._hash.name} is {self._hash.hexdigest()}, the source announced {promised}"
        return ""


def _hash_of(file: RemoteFile) -> hashlib._Hash:
    """A hash of the kind of `file.checksum`. Git's begins with the size."""
    if file.sha256 or not file.checksum:
        return hashlib.sha256()
    if file.md5:
        return hashlib.md5(usedforsecurity=False)
    return hashlib.sha1(f"blob {file.nbytes}\0".encode(), usedforsecurity=False)
