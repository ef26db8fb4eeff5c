"""Lanes of a GPU beside the link's rate: weights in, KV blocks both ways, and weights in beside KV out."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from benchmarks.gpu_rig import GB, SLAB_BYTES, Bench, begin, link_rates, median_s
from benchmarks.report import Row

from aegaeon_native import BlockPool, CopyLane, Range, SlabPool

SLABS = 64  # 2 GiB
BLOCKS_BYTES = (16 << 10, 64 << 10, 192 << 10, 512 << 10, 2 << 20, 8 << 20)
LEAST_BLOCK_BYTES = 192 << 10  # of 16 tokens of a model of 0.5B parameters; of 8B they are 2 MiB
BLOCK_BYTES = 2 << 20  # of KV that goes out beside weights that come in
DUPLEX_GB_S = 80  # of both together, on a PCIe 5 link


def weights(bench: Bench, host: SlabPool, link_in: float) -> None:
    """Into a mapped range; how long mapping takes."""
    slabs, lane = host.total, CopyLane("weights", device=bench.gpu)
    pool, size = bench.pool(slabs), slabs * SLAB_BYTES >> 20
    place, taken = Range(pool, slabs), pool.take(slabs)
    map_s = median_s(lambda: place.map(0, taken), 1)

    def copy() -> None:
        lane.copy(place.address, host.address, slabs * SLAB_BYTES)
        lane.synchronize()

    copy_s = median_s(copy)
    unmap_s = median_s(lambda: place.unmap(0, slabs), 1)
    lane.close()
    rate = slabs * SLAB_BYTES / copy_s / GB
    bench.figures.add(
        Row(f"weights, {size} MiB (limit: pinned copy in this run)", rate, "GB/s", link_in / GB, ">=", 0.9),
        Row(f"mapping {size} MiB in slabs of 32 MiB", map_s * 1e3, "ms"),
        Row("unmapping it", unmap_s * 1e3, "ms"),
    )


def blocks(bench: Bench, host: SlabPool, block_bytes: int, link: tuple[float, float]) -> None:
    """Scattered blocks of half of the memory, in and out."""
    slabs = host.total
    moved = slabs * SLAB_BYTES // 2
    here, there = (BlockPool(pool, block_bytes, slabs) for pool in (bench.pool(slabs), host))
    count = moved // block_bytes
    order = np.random.default_rng(0).permutation(count)
    ours, theirs = here.allocate(count, slabs)[order], there.allocate(count, slabs)
    lane = CopyLane("bench", device=bench.gpu)

    def move(into: BlockPool, to: object, source: BlockPool, of: object) -> None:
        lane.copy_blocks(into.address, source.address, block_bytes, to, of)  # type: ignore[arg-type]  # int32 arrays
        lane.synchronize()

    for way, rate, seconds in (
        ("in", link[0], median_s(lambda: move(here, ours, there, theirs))),
        ("out", link[1], median_s(lambda: move(there, theirs, here, ours))),
    ):
        bench.figures.add(_kv(way, block_bytes, moved / seconds, rate))
    lane.close()
    here.close()
    there.close()


def _kv(way: str, block_bytes: int, rate: float, link: float) -> Row:
    """Blocks smaller than any served model's are reported for the record: copy engines take longer to start them."""
    limit = link / GB if block_bytes >= LEAST_BLOCK_BYTES else None
    return Row(f"KV {way}, blocks of {block_bytes >> 10} KiB", rate / GB, "GB/s", limit, ">=", 0.85)


def duplex(bench: Bench, host: SlabPool) -> None:
    """As many bytes of weights in as of KV out, each on its lane: bytes of both by the time until both are over."""
    half = host.total // 2
    nbytes, count = half * SLAB_BYTES, half * SLAB_BYTES // BLOCK_BYTES
    pool = bench.pool(2 * half)
    place, here, there = Range(pool, half), BlockPool(pool, BLOCK_BYTES, half), BlockPool(host, BLOCK_BYTES, half)
    place.map(0, pool.take(half))
    ours, theirs = here.allocate(count, half), there.allocate(count, half)
    image = SlabPool.shared(f"{_path()}-image", SLAB_BYTES, half, bench.gpu)
    into, out = CopyLane("weights", device=bench.gpu), CopyLane("kv-out", device=bench.gpu)

    def both() -> None:
        into.copy(place.address, image.address, nbytes)
        out.copy_blocks(there.address, here.address, BLOCK_BYTES, theirs, ours)
        into.synchronize()
        out.synchronize()

    rate = 2 * nbytes / median_s(both) / GB
    bench.figures.add(Row("weights in and KV out at once, together", rate, "GB/s", DUPLEX_GB_S, ">="))
    for used in (into, out, here, there, place, image):
        used.close()


def _path() -> Path:
    return Path("/dev/shm") / f"aegaeon-gpu-{os.getpid()}"


def witness(bench: Bench, link: tuple[float, float], nbytes: int) -> None:
    """The same copies by CuPy, which shares no code with torch or with us: the limits are the link's, not torch's."""
    if bench.gpu is None or find_spec("cupy") is None:
        print("copies by CuPy: skipped, it is not here or there is no GPU (pip install 'aegaeon[gpu]')", flush=True)
        return
    cupy = import_module("cupy")
    device, stream = cupy.empty(nbytes, dtype=np.uint8), cupy.cuda.Stream(non_blocking=True)
    host = np.frombuffer(cupy.cuda.alloc_pinned_memory(nbytes), dtype=np.uint8, count=nbytes)

    def into() -> None:
        device.set(host, stream=stream)
        stream.synchronize()

    def out() -> None:
        device.get(stream=stream, out=host)
        stream.synchronize()

    for way, copy, rate in (("in", into, link[0]), ("out", out, link[1])):
        rate_of_cupy = nbytes / median_s(copy) / GB
        bench.figures.add(Row(f"link, {way}, by CuPy (limit: by torch)", rate_of_cupy, "GB/s", rate / GB, "<=", 1.05))


def main() -> int:
    bench, _ = begin("gpu_copies", __doc__)
    nbytes = bench.sized(1 << 30, 1 << 24)
    link = link_rates(bench.device, nbytes)
    witness(bench, link, nbytes)
    host = SlabPool.shared(str(_path()), SLAB_BYTES, bench.sized(SLABS, 2), bench.gpu)
    try:
        weights(bench, host, link[0])
        for size in BLOCKS_BYTES:
            blocks(bench, host, size, link)
        duplex(bench, host)
    finally:
        host.close()
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
