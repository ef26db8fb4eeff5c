"""Weights in host shared memory: one image file per content, laid out exactly like the model's range.

All sidecars of a node share the folder; its lock is held for bookkeeping alone. An image's own lock says how it is
used: exclusive while it is filled or evicted, shared while pinned. The kernel drops a dead process's locks, so its pins
and half-filled images do not count. Symbolic links (`*.known`) remember the content of files that were read before.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native import CudaDevice
from aegaeon_sidecar.domain.errors import CacheFullError, FillCancelledError, WeightsError
from aegaeon_sidecar.weights.image import Image, try_lock

IMAGE_SUFFIX = ".weights"
DRAFT_SUFFIX = ".partial"
KNOWN_SUFFIX = ".known"
_KNOWN_MOST = 4096
LOCK_NAME = "weights.lock"
_POLL_S = 0.05
_POPULATE_BYTES = 64 << 20  # page tables made in one go, during which Python stalls
_MADV_POPULATE_READ = 22

Fill = Callable[[int], str]


@dataclass(slots=True, eq=False)
class Draft:
    """Room for an image, its budget taken: write to `file`, all zeros now, then `publish` or `discard` it."""

    identity: str
    nbytes: int
    path: Path
    file: int


class HostCache:
    """The node's folder of images, kept below `budget_bytes` over all its sidecars. Thread-safe."""

    def __init__(self, folder: Path, budget_bytes: int, gpu: CudaDevice | None = None) -> None:
        """`gpu`: what the images are copied to; their pages are locked for it as soon as they are opened."""
        self._folder = folder
        self.budget_bytes = budget_bytes
        self._gpu = gpu
        self._page_locked: weakref.WeakSet[Image] = weakref.WeakSet()
        self._guard = threading.Lock()

    def obtain(
        self,
        identity: str,
        nbytes: int,
        fill: Fill,
        *,
        give_up: Callable[[], bool] = lambda: False,
        evict: bool = True,
        spare: Collection[str] = (),
    ) -> Image:
        """The pinned image of the files named by `identity`; `fill(descriptor) -> content` unless some sidecar did.

        One sidecar fills, the others wait for it. Raises CacheFullError with the numbers, FillCancelledError, and
        whatever `fill` raises; nothing is left behind then. `give_up` is asked while waiting. Without `evict` only free
        room is used; `spare` as for `draft`.
        """
        while (draft := self.draft(identity, nbytes, evict=evict, spare=spare)) is None:
            if (image := self.find(identity, nbytes)) is not None:
                return image
            if give_up():
                raise FillCancelledError(f"{self._folder}: gave up waiting for another sidecar to fill the cache")
            time.sleep(_POLL_S)  # another process fills it; a blocking lock could not be given up
        return self.complete(draft, fill)

    def complete(self, draft: Draft, fill: Fill) -> Image:
        """The draft filled by `fill(descriptor) -> content` and published, or discarded when that fails.

        Raises whatever `fill` and `publish` raise.
        """
        try:
            content = fill(draft.file)
        except BaseException:
            self.discard(draft)
            raise
        return self.publish(draft, content)

    def find(self, identity: str, nbytes: int) -> Image | None:
        """The pinned image of the files named by `identity`, if it is cached."""
        with self._locked():
            image = self._find(identity, nbytes)
        if image is not None:
            self._make_ready(image)
        return image

    def changed_ns(self) -> int:
        """When an image last came or went, nanoseconds of the file system's clock."""
        return self._folder.stat().st_mtime_ns

    def held(self, identities: Iterable[str]) -> set[str]:
        """Which of these files have their image here."""
        with self._locked():
            images = {path.name.removesuffix(IMAGE_SUFFIX) for path in self._folder.glob(f"*{IMAGE_SUFFIX}")}
            return {files for files in identities if self._known(files) in images}

    def draft(self, identity: str, nbytes: int, *, evict: bool = True, spare: Collection[str] = ()) -> Draft | None:
        """Room to fill; None when the image is there or another sidecar is filling it. Raises CacheFullError.

        Images of the contents in `spare` are not evicted for it, those in use never.
        """
        with self._locked():
            path = self._folder / f"{identity}{DRAFT_SUFFIX}"
            cached = self._find(identity, nbytes)
            if cached is not None:
                cached.close()
            if cached is not None or self._being_filled(path):
                return None
            self._make_room(nbytes, evict, spare)
            self._check_room(nbytes)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.truncate(handle, nbytes)  # from here on it counts; its pages are made as they are written
        self.unlock_evicted()  # so that they do not take memory beside what comes instead of them
        return Draft(identity, nbytes, path, handle)

    def publish(self, draft: Draft, content: str) -> Image:
        """Make a filled draft the pinned image of `content`, or drop it when another one has come first.

        Raises WeightsError when the same files, unchanged by their looks, were once of another content, CacheFullError
        when nothing was written somewhere and there is no room for it any more.
        """
        self._make_whole(draft)
        with self._locked():
            known = self._known(draft.identity)
            if known not in (None, content):
                (self._folder / f"{draft.identity}{KNOWN_SUFFIX}").unlink()
                _drop(draft)
                raise WeightsError(
                    "the weights read differ from those read before, though size and time of the files are the same; "
                    "check the disk, then send the catalog again"
                )
            path = self._folder / f"{content}{IMAGE_SUFFIX}"
            if not path.exists():
                draft.path.rename(path)
            _drop(draft)
            self._remember(draft.identity, content)
            image = self._open(path, content, draft.nbytes)
        self._make_ready(image)
        return image

    def learn(self, identity: str, content: str) -> None:
        """Files of another identity were found to be of a known content as well."""
        with self._locked():
            self._remember(identity, content)

    def _make_ready(self, image: Image) -> None:
        _populate(image)
        if self._gpu is not None:
            image.lock_pages(self._gpu)
            with self._guard:
                self._page_locked.add(image)

    def unlock_evicted(self) -> None:
        """Let go of the pages of images that are open here and were evicted, by whichever sidecar."""
        with self._guard:
            images = list(self._page_locked)
        for image in images:
            image.unlock_evicted()

    def discard(self, draft: Draft) -> None:
        """Give the draft's room back."""
        with self._locked():
            _drop(draft)

    def used_bytes(self) -> int:
        """What images and drafts of living sidecars take."""
        with self._locked():
            return self._sweep()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _find(self, identity: str, nbytes: int) -> Image | None:
        content = self._known(identity)
        path = self._folder / f"{content}{IMAGE_SUFFIX}"
        if content is None or not path.exists() or path.stat().st_size != nbytes:
            return None
        return self._open(path, content, nbytes)

    def _open(self, path: Path, content: str, nbytes: int) -> Image:
        """Pinned; the folder's lock is held, so nothing evicts it. Writable where a GPU may want it locked so."""
        writes = self._gpu is not None
        handle = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_SH)
        os.utime(handle)
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
        return Image(content, nbytes, mmap.mmap(handle, nbytes, flags=mmap.MAP_SHARED, prot=prot), handle)

    def _known(self, identity: str) -> str | None:
        try:
            return os.readlink(self._folder / f"{identity}{KNOWN_SUFFIX}")
        except FileNotFoundError:
            return None

    def _remember(self, identity: str, content: str) -> None:
        link = self._folder / f"{identity}{KNOWN_SUFFIX}"
        link.unlink(missing_ok=True)
        link.symlink_to(content)
        known = sorted(self._folder.glob(f"*{KNOWN_SUFFIX}"), key=lambda path: path.lstat().st_mtime_ns)
        for oldest in known[:-_KNOWN_MOST]:
            oldest.unlink()

    def _being_filled(self, path: Path) -> bool:
        return path.exists() and not _remove_if_unused(path)

    def _sweep(self) -> int:
        """Remove what dead sidecars left half filled; returns the bytes in use."""
        for partial in self._folder.glob(f"*{DRAFT_SUFFIX}"):
            _remove_if_unused(partial)
        files = [*self._folder.glob(f"*{IMAGE_SUFFIX}"), *self._folder.glob(f"*{DRAFT_SUFFIX}")]
        return sum(path.stat().st_size for path in files)

    def _make_room(self, nbytes: int, evict: bool, spare: Collection[str]) -> None:
        used = self._sweep()
        images = sorted(self._folder.glob(f"*{IMAGE_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
        for path in images if evict and nbytes <= self.budget_bytes else []:
            if used + nbytes > self.budget_bytes and path.name.removesuffix(IMAGE_SUFFIX) not in spare:
                used -= _remove_if_unused(path)
        if used + nbytes > self.budget_bytes:
            raise CacheFullError(
                f"the weights need {nbytes} bytes; host_cache_bytes is {self.budget_bytes}, of which {used} are in "
                "use by other models; raise it or serve fewer models on this node"
            )

    def _check_room(self, nbytes: int) -> None:
        """In the file system, beside what the drafts of others are yet to take of it (folder's lock held)."""
        system = os.statvfs(self._folder)
        promised = sum(_missing_bytes(path.stat()) for path in self._folder.glob(f"*{DRAFT_SUFFIX}"))
        free, size = system.f_bavail * system.f_frsize - promised, system.f_blocks * system.f_frsize
        if size and nbytes > free:  # 0: a tmpfs without a limit
            raise CacheFullError(
                f"{self._folder}: the weights need {nbytes} bytes, its file system has {free} free of {size}, though "
                f"host_cache_bytes is {self.budget_bytes}; make the tmpfs larger (of a container: --shm-size, or an "
                "emptyDir of medium Memory) or host_cache_bytes smaller"
            )

    def _make_whole(self, draft: Draft) -> None:
        """Pages that nothing was written to, for padding: who reads one that is not there may end with SIGBUS."""
        try:
            if _missing_bytes(os.fstat(draft.file)):
                os.posix_fallocate(draft.file, 0, draft.nbytes)
        except OSError as error:
            self.discard(draft)
            if error.errno != errno.ENOSPC:
                raise
            raise CacheFullError(f"{draft.path}: {error.strerror}; there is no room for its last pages") from error


def _drop(draft: Draft) -> None:
    """Unlock and, unless it has been published, remove (folder's lock held)."""
    draft.path.unlink(missing_ok=True)
    os.close(draft.file)


def _missing_bytes(stat: os.stat_result) -> int:
    """Of the file, without memory behind them."""
    return max(stat.st_size - stat.st_blocks * 512, 0)


def _populate(image: Image) -> None:
    """Make the page tables, so that the first load is as quick as the next."""
    with suppress(OSError):  # an old kernel: the first load makes them
        for start in range(0, image.nbytes, _POPULATE_BYTES):
            image._map.madvise(_MADV_POPULATE_READ, start, min(_POPULATE_BYTES, image.nbytes - start))


def _remove_if_unused(path: Path) -> int:
    """Remove a file that is not pinned or filled, and free its memory even where mapped; returns the bytes freed."""
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if not try_lock(handle, fcntl.LOCK_EX):
            return 0
        nbytes = os.fstat(handle).st_size
        path.unlink()
        os.truncate(handle, 0)
        return nbytes
    finally:
        os.close(handle)
