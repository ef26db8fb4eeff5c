"""Leases on the shared files of a node: file locks of the kernel, which end with their process.

A process that creates, tests or removes leased files in a folder holds the folder's own lock meanwhile, so that no
process sees a file before it is locked. A whole file is held by its owner; single bytes of a table are held by readers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of a 64-bit Linux: type, whence, start, length, pid
LOCK_SUFFIX = ".lock"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock a folder, or a file named `*.lock`, exclusively; a missing one is created. Blocks until it is free."""
    handle = _lock_or_make(path)
    try:
        yield
    finally:
        os.close(handle)


def _lock_or_make(path: Path) -> int:
    while True:
        try:
            return _lock(path, fcntl.LOCK_EX)
        except FileNotFoundError:
            folder = path.parent if _is_lock_file(path) else path
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def try_locked(path: Path) -> Iterator[bool]:
    """Lock a folder or file exclusively; False when another process holds it or it is gone. Creates a `*.lock` file."""
    handle = _lock_if_free(path)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def _lock_if_free(path: Path) -> int | None:
    try:
        return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except FileNotFoundError:
        if _is_lock_file(path):  # it would have been made: its folder is gone
            raise
        return None


def share(path: Path) -> int:
    """Take a shared lock until the handle is closed. Blocks while it is held exclusively. Creates a `*.lock` file."""
    return _lock(path, fcntl.LOCK_SH)


def _lock(path: Path, kind: int) -> int:
    flags = os.O_RDWR | os.O_CREAT if _is_lock_file(path) else os.O_RDONLY
    while True:
        handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, kind)
        except OSError:
            os.close(handle)
            raise
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # removed before it was ours: the lock of nothing


def _is_lock_file(path: Path) -> bool:
    return path.name.endswith(LOCK_SUFFIX)


def try_lock(handle: int, kind: int) -> bool:
    """Lock an open file, or change its lock; False when other processes hold a conflicting lock."""
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold(path: Path) -> int:
    """Create a file and lock it until the handle is closed or this process ends. The folder's lock is the caller's."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return handle


def is_held(path: Path) -> bool:
    """True when a living process holds the file exclusively. The test does not disturb shared locks of readers and
    pins."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def holders(path: Path) -> list[int]:
    """Process ids that hold locks on the file, for people: processes of other containers are not among them."""
    pids: set[int] = set()
    with suppress(OSError):  # no /proc, or the file is gone
        inode = path.stat().st_ino
        for line in Path("/proc/locks").read_text("ascii").splitlines():
            _, kind, _, _, pid, where, *_ = line.replace("->", "").split()
            if kind == "FLOCK" and where.rpartition(":")[2] == str(inode):
                pids.add(int(pid))
    return sorted(pids)


class ByteLocks:
    """Locks on single bytes of a file. They belong to this object, not to the process, and die with either."""

    def __init__(self, path: Path) -> None:
        self._file = FileIO(path, "r+")

    def share(self, at: int) -> None:
        """Lock the byte as a reader; blocks while another process tests whether it is free."""
        self._set(fcntl.F_RDLCK, at, fcntl.F_OFD_SETLKW)

    def release(self, at: int) -> None:
        """Unlock the byte."""
        self._set(fcntl.F_UNLCK, at, fcntl.F_OFD_SETLK)

    def is_shared(self, at: int) -> bool:
        """True when another process holds the byte."""
        return self._conflict(at, 1) is not None

    def shared(self, size: int) -> list[int]:
        """The bytes below `size` that other processes hold."""
        taken: list[int] = []
        at = 0
        while at < size and (lock := self._conflict(at, size - at)) is not None:
            start, length = max(lock[0], at), lock[1]
            end = size if length == 0 else min(lock[0] + length, size)
            taken += range(start, end)
            at = end
        return taken

    def close(self) -> None:
        """Unlock every byte. Idempotent."""
        self._file.close()

    def _conflict(self, at: int, count: int) -> tuple[int, int] | None:
        """(start, length) of the first lock that conflicts with an exclusive lock on these bytes."""
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, count, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(self._file, fcntl.F_OFD_GETLK, request))
        return None if kind == fcntl.F_UNLCK else (start, length)

    def _set(self, kind: int, at: int, command: int) -> None:
        while True:
            try:
                fcntl.fcntl(self._file, command, _FLOCK.pack(kind, os.SEEK_SET, at, 1, 0))
            except OSError as error:
                if error.errno != errno.EINTR:
                    raise
            else:
                return
