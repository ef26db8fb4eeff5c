"""Memory of an engine outside its slabs: activations, workspaces, graphs, adapters, compiled kernels, the interpreter.

It is reserved before the slabs are cut, measured with every heartbeat, and reported beside the reservation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from aegaeon_proto.engine.reports import OutsideSlabs

log = logging.getLogger(__name__)

_STATUS = Path("/proc/self/status")
MemoryInfo = Callable[[], tuple[int, int]]
"""bytes of a GPU: free, and all"""


def outside_bytes() -> int:
    """Its anonymous memory; slabs and images of the host cache are files in memory, and no part of it."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


class Outside:
    """Measures it beside what is reserved for it. Thread-safe.

    On GPUs (`gpus`, by rank) it is all that is in use there but `slab_bytes`, the slabs of each, which are allocated as
    long as the process runs: of several GPUs the one with most. On a CPU (no `gpus`) it is memory of the process.
    """

    def __init__(self, reserved_bytes: int, slab_bytes: int = 0, gpus: Sequence[MemoryInfo] = ()) -> None:
        self._slab_bytes, self._gpus = slab_bytes, gpus
        self._guard = Lock()
        self.last = OutsideSlabs(reserved_bytes)

    def sample(self) -> OutsideSlabs:
        """Measure the memory outside the slabs. The first time that more is taken than is reserved, the log says so."""
        used = self._used_bytes()
        with self._guard:
            reserved, peak = self.last.reserved_bytes, self.last.peak_bytes
            self.last = OutsideSlabs(reserved, used, max(used, peak))
        if used > reserved >= peak:
            log.warning(
                "%d bytes lie outside the slabs, and %d are reserved for them; raise memory.outside_bytes",
                used,
                reserved,
            )
        return self.last

    def _used_bytes(self) -> int:
        if not self._gpus:
            return outside_bytes()
        return max(total - free - self._slab_bytes for free, total in (info() for info in self._gpus))
