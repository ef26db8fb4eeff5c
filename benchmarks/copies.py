"""What a copy lane reaches beside the plain memcpy of the same bytes, and what mapping slabs costs beside a copy.

The copy is a model's load: 300 MB from the host tier (a file in shared memory) into the slabs of a model's range.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.report import Row, report

from aegaeon_native import CopyLane, Range, SlabPool

SLAB_BYTES = 2 << 20
SLABS = 150
NBYTES = SLAB_BYTES * SLABS
BLOCK_BYTES = 65536
ROUNDS = 9


def seconds(action: Callable[[], object]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def lane_copy(lane: CopyLane, dst: int, src: int) -> None:
    lane.copy(dst, src, NBYTES)
    lane.synchronize()


def lane_blocks(lane: CopyLane, dst: int, src: int) -> None:
    order = np.random.default_rng(0).permutation(NBYTES // BLOCK_BYTES).astype(np.int32)
    lane.copy_blocks(dst, src, BLOCK_BYTES, order, order)
    lane.synchronize()


def measure(host: SlabPool, device: SlabPool, lane: CopyLane) -> list[Row]:
    """Each round takes every figure once, so that other load on the machine affects all alike; medians are reported."""
    place, slabs = Range(device, SLABS), device.take(SLABS)
    place.map(0, slabs)
    place.view(0, NBYTES)[:] = 1
    plain, copied, blocks, mapping, unmapping = [], [], [], [], []
    for _ in range(ROUNDS):
        plain.append(seconds(lambda: ctypes.memmove(place.address, host.address, NBYTES)))
        copied.append(seconds(lambda: lane_copy(lane, place.address, host.address)))
        blocks.append(seconds(lambda: lane_blocks(lane, place.address, host.address)))
        unmapping.append(seconds(lambda: place.unmap(0, SLABS)))
        mapping.append(seconds(lambda: place.map(0, slabs)))
    place.close()
    rate = {"plain": plain, "copied": copied, "blocks": blocks}
    gbs = {name: NBYTES / statistics.median(times) / 1e9 for name, times in rate.items()}
    copy_s, map_s = statistics.median(copied), statistics.median(mapping)
    return [
        Row("copy lane, 300 MB (limit: memcpy in this run)", gbs["copied"], "GB/s", gbs["plain"], ">=", 0.9),
        Row("copy lane, 64 KiB blocks in random order", gbs["blocks"], "GB/s", gbs["plain"], ">=", 0.9),
        Row("mapping 300 MB", map_s * 1e3, "ms"),
        Row("mapping 300 MB, beside the copy", map_s / copy_s, "of the copy"),
        Row("unmapping 300 MB", statistics.median(unmapping) * 1e3, "ms"),
    ]


def main() -> int:
    path = Path("/dev/shm") / f"aegaeon-bench-{os.getpid()}"
    host = SlabPool.shared(str(path), SLAB_BYTES, SLABS)
    device, lane = SlabPool.private("bench", SLAB_BYTES, SLABS), CopyLane("bench")
    try:
        ctypes.memset(host.address, 7, NBYTES)
        holds = report("copies", measure(host, device, lane))
    finally:
        lane.close()
        device.close()
        host.close()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
