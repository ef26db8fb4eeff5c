"""Lanes of a GPU beside the link's rate: weights in, KV blocks both ways."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from benchmarks.gpu_rig import GB, SLAB_BYTES, gpu, link_rates, median_s
from benchmarks.report import Row, report

from aegaeon_native import BlockPool, CopyLane, CudaDevice, Range, SlabPool

SLABS = 64  # 2 GiB
BLOCKS_BYTES = (16 << 10, 64 << 10, 192 << 10, 512 << 10, 2 << 20, 8 << 20)
LEAST_BLOCK_BYTES = 192 << 10  # of 16 tokens of a model of 0.5B parameters; of 8B they are 2 MiB
MOVED = 512 << 20


def weights_rate(device: CudaDevice, host: SlabPool, lane: CopyLane) -> tuple[float, float, float]:
    """Bytes a second into a mapped range; seconds to map and to unmap it."""
    pool = SlabPool.cuda(device, SLAB_BYTES, SLABS)
    place, slabs = Range(pool, SLABS), pool.take(SLABS)
    map_s = median_s(lambda: place.map(0, slabs), 1)
    copy_s = median_s(lambda: (lane.copy(place.address, host.address, SLABS * SLAB_BYTES), lane.synchronize()))
    unmap_s = median_s(lambda: place.unmap(0, SLABS), 1)
    return SLABS * SLAB_BYTES / copy_s, map_s, unmap_s


def blocks_rates(device: CudaDevice, host: SlabPool, block_bytes: int) -> tuple[float, float]:
    """Bytes a second of scattered blocks: in, out."""
    here = BlockPool(SlabPool.cuda(device, SLAB_BYTES, SLABS), block_bytes, SLABS)
    there = BlockPool(host, block_bytes, SLABS)
    count = MOVED // block_bytes
    order = np.random.default_rng(0).permutation(count)
    ours, theirs = here.allocate(count, SLABS)[order], there.allocate(count, SLABS)
    lane = CopyLane("bench", device=device)

    def move(into: BlockPool, to: object, source: BlockPool, of: object) -> None:
        lane.copy_blocks(into.address, source.address, block_bytes, to, of)  # type: ignore[arg-type]  # int32 arrays
        lane.synchronize()

    into = median_s(lambda: move(here, ours, there, theirs))
    out = median_s(lambda: move(there, theirs, here, ours))
    lane.close()
    here.close()
    there.close()
    return MOVED / into, MOVED / out


def main() -> int:
    device = gpu()
    link_in, link_out = link_rates()
    path = Path("/dev/shm") / f"aegaeon-gpu-{os.getpid()}"
    host = SlabPool.shared(str(path), SLAB_BYTES, SLABS, device)
    lane = CopyLane("weights", device=device)
    try:
        rate, map_s, unmap_s = weights_rate(device, host, lane)
        rows = [
            Row("weights, 2 GiB (limit: pinned copy in this run)", rate / GB, "GB/s", link_in / GB, ">=", 0.9),
            Row("mapping 2 GiB in slabs of 32 MiB", map_s * 1e3, "ms"),
            Row("unmapping it", unmap_s * 1e3, "ms"),
        ]
        for size in BLOCKS_BYTES:
            into, out = blocks_rates(device, host, size)
            rows.append(_kv("in", size, into, link_in))
            rows.append(_kv("out", size, out, link_out))
        return 0 if report("gpu_copies", rows) else 1
    finally:
        lane.close()
        host.close()


def _kv(way: str, block_bytes: int, rate: float, link: float) -> Row:
    """Blocks smaller than any served model's are reported for the record: copy engines take longer to start them."""
    limit = link / GB if block_bytes >= LEAST_BLOCK_BYTES else None
    return Row(f"KV {way}, blocks of {block_bytes >> 10} KiB", rate / GB, "GB/s", limit, ">=", 0.85)


if __name__ == "__main__":
    sys.exit(main())
