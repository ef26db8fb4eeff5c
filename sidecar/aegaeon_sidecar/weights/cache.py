"""Weights in host shared memory: one image file per content, laid out exactly like the model's range.

All sidecars of a node share the folder. An image is filled once, under a lock that covers the folder, and appears by
rename when it is complete; who maps it holds a shared lock on it, so that eviction takes only what nobody maps.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aegaeon_sidecar.errors import CacheFullError, FillCancelledError

_SUFFIX = ".weights"
_PARTIAL = ".partial"
_LOCK = "weights.lock"
Fill = Callable[[NDArray[np.uint8]], None]


@dataclass(slots=True, eq=False)
class Image:
    """A complete image, mapped read-only and populated. `close` gives up the map and the claim on the file."""

    content: str
    nbytes: int
    _map: mmap.mmap
    _file: int

    @property
    def address(self) -> int:
        """Where it is mapped in this process."""
        return np.frombuffer(self._map, dtype=np.uint8).ctypes.data

    def close(self) -> None:
        self._map.close()
        os.close(self._file)


class HostCache:
    """The node's folder of images, kept below `budget_bytes`. `give_up` is asked while waiting for another sidecar."""

    def __init__(self, folder: Path, budget_bytes: int, wait: Callable[[float], bool]) -> None:
        """`wait(seconds)` sleeps and says whether to give up."""
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._wait = wait

    def obtain(self, content: str, nbytes: int, fill: Fill) -> Image:
        """The image of `content`, filled by `fill(destination uint8[nbytes])` if no sidecar has done so yet.

        Raises CacheFullError with the numbers, FillCancelledError, and whatever `fill` raises; nothing is left behind.
        """
        with self._locked():
            path = self._folder / f"{content}{_SUFFIX}"
            if not path.exists():
                self._make_room(nbytes)
                self._publish(path, nbytes, fill)
            os.utime(path)
            return _open_image(path, content, nbytes)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(handle, fcntl.LOCK_EX):
                if self._wait(0.05):
                    raise FillCancelledError(f"{self._folder}: gave up waiting for another sidecar to fill the cache")
            yield
        finally:
            os.close(handle)

    def _publish(self, path: Path, nbytes: int, fill: Fill) -> None:
        partial = path.with_suffix(_PARTIAL)
        try:
            with partial.open("wb+") as file:
                os.posix_fallocate(file.fileno(), 0, nbytes)
                fill(np.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=np.uint8))
            partial.rename(path)
        except OSError as error:
            raise CacheFullError(
                f"{partial}: {error.strerror}; make the tmpfs larger or host_cache_bytes smaller"
            ) from error
        finally:
            partial.unlink(missing_ok=True)

    def _make_room(self, nbytes: int) -> None:
        for stale in self._folder.glob(f"*{_PARTIAL}"):
            stale.unlink(missing_ok=True)  # whoever filled it held the lock that is ours: it is dead
        images = sorted(self._folder.glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        used = sum(path.stat().st_size for path in images)
        for path in images:
            if used + nbytes <= self._budget_bytes:
                return
            used -= _evict(path)
        if used + nbytes > self._budget_bytes:
            raise CacheFullError(
                f"the weights need {nbytes} bytes; host_cache_bytes is {self._budget_bytes}, of which {used} are in "
                "use by other models; raise it or serve fewer models on this node"
            )


def _open_image(path: Path, content: str, nbytes: int) -> Image:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_SH)
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return Image(content, nbytes, mmap.mmap(handle, nbytes, flags=flags, prot=mmap.PROT_READ), handle)


def _evict(path: Path) -> int:
    """Remove an image that nobody maps; returns the bytes freed, 0 when it is in use."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not _try_lock(handle, fcntl.LOCK_EX):
            return 0
        nbytes = os.fstat(handle).st_size
        path.unlink()
        return nbytes
    finally:
        os.close(handle)


def _try_lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
