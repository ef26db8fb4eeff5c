"""Page-locks the images that this engine loads, in a thread of its own: what is not loaded is not locked.

A lock takes some 0.5 s/GB (an H200), three times and more what a copy of unlocked pages takes, by way of the driver's
own buffers. So no load waits for it: what was queued is locked ahead as far as time allows, the rest behind the copy.
"""

from __future__ import annotations

import threading
import weakref
from queue import SimpleQueue

from aegaeon_native import CudaDevice
from aegaeon_sidecar.weights.image import Image

PIECE_BYTES = 64 << 20  # of a call of the driver: a load that has just come waits for one


class PageLocks:
    """Images put into `line` are locked for the GPU, one after the other; without a GPU there is none. Thread-safe."""

    def __init__(self, gpu: CudaDevice | None, piece_bytes: int = PIECE_BYTES) -> None:
        self.line: SimpleQueue[Image | None] | None = None
        self._piece_bytes = piece_bytes
        self._images: weakref.WeakSet[Image] = weakref.WeakSet()
        self._guard = threading.Lock()
        self._stopping = False
        if gpu is not None:
            self.line = SimpleQueue()
            self._thread = threading.Thread(target=self._run, args=(gpu, self.line), name="page-locks", daemon=True)

    def start(self) -> None:
        if self.line is not None:
            self._thread.start()

    def stop(self) -> None:
        """Stop after the current piece. Locked pages stay locked until the images are closed."""
        self._stopping = True
        if self.line is not None and self._thread.is_alive():
            self.line.put(None)
            self._thread.join()

    def unlock_evicted(self) -> None:
        """Let go of the pages of images that were evicted, by whichever sidecar."""
        with self._guard:
            images = list(self._images)
        for image in images:
            image.unlock_evicted()

    def _run(self, gpu: CudaDevice, line: SimpleQueue[Image | None]) -> None:
        while (image := line.get()) is not None:
            with self._guard:
                self._images.add(image)
            while not self._stopping and image.lock_next(gpu, self._piece_bytes):
                pass
