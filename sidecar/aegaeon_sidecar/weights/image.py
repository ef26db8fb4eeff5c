"""An open image of the host cache: mapped, pinned by a lock on its file, and its pages ready to copy."""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import threading
import time
from ctypes import c_ubyte
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import CudaDevice, NativeError
from aegaeon_native.leases import try_lock

log = logging.getLogger(__name__)

_PIN_S = 0.05  # the engine's lock may be held meanwhile


@dataclass(slots=True, eq=False, weakref_slot=True)
class Image:
    """A complete image, mapped. Its bytes may be read while it is pinned; `obtain` and `find` pin it."""

    content: str
    nbytes: int
    _map: mmap.mmap
    _file: int
    _gpu: CudaDevice | None = None
    _locking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> int:
        """Where it is mapped in this process."""
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
        while os.fstat(self._file).st_nlink:
            if try_lock(self._file, fcntl.LOCK_SH):
                break
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)  # poll: flock cannot wait with a time limit
        if os.fstat(self._file).st_nlink == 0:
            return False
        os.utime(self._file)
        return True

    def unpin(self) -> None:
        """It may be evicted. The map stays, so that the next `pin` costs nothing."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def lock_pages(self, gpu: CudaDevice) -> None:
        """Copies to this GPU run at the link's rate from here on; where that is refused they run all the same."""
        with self._locking:
            try:
                gpu.lock_pages(self.address, self.nbytes, read_only=True)
                self._gpu = gpu
            except NativeError as error:
                log.warning("%s is copied at the rate of pages that are not locked: %s", self.content, error)

    def unlock_evicted(self) -> None:
        """Locked pages stay in memory when their file is cut: what has been evicted must let go of them."""
        with self._locking:
            if self._gpu is not None and os.fstat(self._file).st_nlink == 0:
                self._unlock()

    def close(self) -> None:
        with self._locking:
            self._unlock()
            self._map.close()
            os.close(self._file)

    def _unlock(self) -> None:
        if self._gpu is not None:
            self._gpu.unlock_pages(self.address)
            self._gpu = None
