"""Weights in host shared memory: one image file per content, laid out exactly like the model's range.

All sidecars of a node share the folder; its lock is held for bookkeeping only. An image's own lock shows its use:
exclusive while it is filled or evicted, shared while pinned. The kernel drops a dead process's locks, so its pins
and half-filled images do not count.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native import CudaDevice
from aegaeon_native.leases import hold
from aegaeon_sidecar.domain.errors import CacheFullError, FillCancelledError, WeightsError
from aegaeon_sidecar.weights.image import Image
from aegaeon_sidecar.weights.image_folder import ImageFolder, missing_bytes
from aegaeon_sidecar.weights.page_locks import PageLocks
from aegaeon_sidecar.weights.store import make_room

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
        """`gpu`: what the images are copied to; the pages of those that are loaded are locked for it."""
        self.budget_bytes = budget_bytes
        self._folder = ImageFolder(folder, budget_bytes)
        self._gpu = gpu
        self.page_locks = PageLocks(gpu)

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
                raise FillCancelledError(f"{self._folder.path}: gave up waiting for another sidecar to fill the cache")
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
        with self._folder.locked():
            image = self._find(identity, nbytes)
        if image is not None:
            _populate(image)
        return image

    def changed_ns(self) -> int:
        """The time at which an image was last added or removed, nanoseconds of the file system's clock."""
        return self._folder.path.stat().st_mtime_ns

    def held(self, identities: Iterable[str]) -> set[str]:
        """The identities among these whose image is in the cache."""
        with self._folder.locked():
            images = {image.content for image in self._folder.images()}
            return {files for files in identities if self._folder.known(files) in images}

    def draft(self, identity: str, nbytes: int, *, evict: bool = True, spare: Collection[str] = ()) -> Draft | None:
        """Room to fill; None when the image is there or another sidecar is filling it. Raises CacheFullError.

        Images of the contents in `spare` are not evicted for it, those in use never.
        """
        with self._folder.locked():
            cached = self._find(identity, nbytes)
            if cached is not None:
                cached.close()
            if cached is not None or self._folder.is_being_filled(identity):
                return None
            self._make_room(nbytes, evict, spare)
            path = self._folder.draft(identity)
            handle = hold(path)
            os.truncate(handle, nbytes)  # from here on it counts; its pages are made as they are written
        self.page_locks.unlock_evicted()  # so that they do not take memory beside what comes instead of them
        return Draft(identity, nbytes, path, handle)

    def publish(self, draft: Draft, content: str) -> Image:
        """Make a filled draft the pinned image of `content`, or drop it when another one has come first.

        Raises WeightsError when the same files, unchanged by their looks, were once of another content, CacheFullError
        when nothing was written somewhere and there is no room for it any more.
        """
        self._make_whole(draft)
        with self._folder.locked():
            if self._folder.known(draft.identity) not in (None, content):
                self._folder.forget(draft.identity)
                _drop(draft)
                raise WeightsError(
                    "the weights read differ from those read before, though size and time of the files are the same; "
                    "check the disk, then send the catalog again"
                )
            path = self._folder.image(content)
            if not path.exists():
                draft.path.rename(path)
            _drop(draft)
            self._folder.remember(draft.identity, content)
            image = self._open(path, content, draft.nbytes)
        _populate(image)
        return image

    def learn(self, identity: str, content: str) -> None:
        """Files of another identity were found to be of a known content as well."""
        with self._folder.locked():
            self._folder.remember(identity, content)

    def is_proved(self, key: str) -> bool:
        """True when a sidecar of this node has made the proof of this key successfully."""
        with self._folder.locked():
            return self._folder.is_proved(key)

    def remember_proof(self, key: str) -> None:
        """Record a proof for all sidecars of this node, also later ones."""
        with self._folder.locked():
            self._folder.remember_proof(key)

    def discard(self, draft: Draft) -> None:
        """Give the draft's room back."""
        with self._folder.locked():
            _drop(draft)

    def used_bytes(self) -> int:
        """Bytes of images and of drafts of living sidecars."""
        with self._folder.locked():
            return self._folder.used_bytes()

    def _find(self, identity: str, nbytes: int) -> Image | None:
        content = self._folder.known(identity)
        if content is None:
            return None
        path = self._folder.image(content)
        if not path.exists() or path.stat().st_size != nbytes:
            return None
        return self._open(path, content, nbytes)

    def _open(self, path: Path, content: str, nbytes: int) -> Image:
        """Pinned; the folder's lock is held, so nothing evicts it. Writable where a GPU locks no other pages.

        Raises OSError, also where this process has as many maps as it may.
        """
        writes = self._gpu is not None and not self._gpu.locks_read_only
        handle = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(handle)
            prot = mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0)
            pages = mmap.mmap(handle, nbytes, flags=mmap.MAP_SHARED, prot=prot)
            return Image(content, nbytes, pages, handle, self.page_locks.line)
        except BaseException:
            os.close(handle)  # else it would be pinned for ever
            raise

    def _make_room(self, nbytes: int, evict: bool, spare: Collection[str]) -> None:
        victims = [image for image in self._folder.images() if evict and image.content not in spare]
        make_room(self._folder, nbytes, missing=nbytes, used=self._folder.used_bytes(), victims=victims)

    def _make_whole(self, draft: Draft) -> None:
        """Allocate the pages of unwritten padding: reading a missing page may raise SIGBUS."""
        try:
            if missing_bytes(os.fstat(draft.file)):
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


def _populate(image: Image) -> None:
    """Make the page tables, so that the first load is as quick as the next."""
    with suppress(OSError):  # an old kernel: the first load makes them
        for start in range(0, image.nbytes, _POPULATE_BYTES):
            image._map.madvise(_MADV_POPULATE_READ, start, min(_POPULATE_BYTES, image.nbytes - start))
