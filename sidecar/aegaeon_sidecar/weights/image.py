"""An open image of the host cache: mapped, pinned by a lock on its file, and its pages ready to copy."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_ubyte
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import CudaDevice, NativeError
from aegaeon_native.leases import try_lock

log = logging.getLogger(__name__)

_PIN_S = 0.05  # the engine's lock may be held meanwhile


@dataclass(slots=True, eq=False, weakref_slot=True)
class Image:
    """A complete image, mapped. Its bytes may be read while it is pinned; `obtain` and `find` pin it.

    `_line`: of images whose pages are to be locked (PageLocks); None without a GPU. `_locked`: where the pieces begin
    that are, all of one size, from the beginning on.
    """

    content: str
    nbytes: int
    _map: mmap.mmap
    _file: int
    _line: SimpleQueue[Image | None] | None = None
    _in_line: bool = False
    _gpu: CudaDevice | None = None
    _locked: list[int] = field(default_factory=list)
    _copies: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> int:
        """The address of its mapping in this process."""
        return np.frombuffer(self._map, dtype=np.uint8).ctypes.data

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """A view of them, to be used while it is pinned; it does not keep the map."""
        return np.ctypeslib.as_array((c_ubyte * self.nbytes).from_address(self.address))

    def pin(self) -> bool:
        """Keep it from eviction and make it the newest; False when it has been evicted: `close` it then.

        A process that looks for room locks entries exclusively for a moment, and may then evict none of them.
        """
        deadline = time.monotonic() + _PIN_S
        while not self._is_evicted:
            if try_lock(self._file, fcntl.LOCK_SH):
                break
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)  # poll: flock cannot wait with a time limit
        if self._is_evicted:
            return False
        os.utime(self._file)
        return True

    def unpin(self) -> None:
        """Allow eviction. The map stays, so that the next `pin` costs nothing."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def lock_soon(self) -> None:
        """Have its pages locked by another thread. Any number of calls; the engine's lock may be held."""
        if self._line is not None and not self._in_line:
            self._in_line = True
            self._line.put(self)

    def lock_next(self, gpu: CudaDevice, piece_bytes: int) -> bool:
        """Lock the next so many bytes for this GPU; whether more are left to be locked now.

        None are while a copy reads them, and none of what was evicted. Where a lock is refused copies run all the same.
        """
        with self._guard:
            self._in_line = False
            done = len(self._locked) * piece_bytes
            if self._copies or self._line is None or self._is_evicted or done >= self.nbytes:
                return False
            address = self.address + done
            try:
                gpu.lock_pages(address, min(piece_bytes, self.nbytes - done), read_only=True)
            except NativeError as error:
                log.warning("%s is copied at the rate of pages that are not locked: %s", self.content, error)
                self._line = None
                return False
            self._gpu = gpu
            self._locked.append(address)
            return True

    @contextmanager
    def copied(self) -> Iterator[None]:
        """A GPU copies its bytes: what is not locked by now stays so until the end."""
        with self._guard:  # waits for the piece that is being locked
            self._copies += 1
        try:
            yield
        finally:
            with self._guard:
                self._copies -= 1

    def unlock_evicted(self) -> None:
        """Locked pages stay in memory when their file is cut: what has been evicted must let go of them."""
        with self._guard:
            if self._locked and self._is_evicted:
                self._unlock()

    def close(self) -> None:
        """Close it; not with the engine's lock held if its pages may be locked: unlocking takes time."""
        with self._guard:
            self._unlock()
            self._line = None
            self._map.close()
            os.close(self._file)

    @property
    def _is_evicted(self) -> bool:
        return os.fstat(self._file).st_nlink == 0

    def _unlock(self) -> None:
        if self._gpu is not None:
            for address in self._locked:
                self._gpu.unlock_pages(address)
        self._locked.clear()
