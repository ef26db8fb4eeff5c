"""What the size of a slab costs: memory lost at the borders of blocks, and time to map a model before it is copied.

Fragmentation is that of `benchmarks.slabs` (six KV shapes, 80 % full). A load maps slabs that lie in no order, as they
do after some switches, so that no two of them are mapped by one call; it stands beside the memcpy of the same round.
"""

from __future__ import annotations

import ctypes
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import Row, report
from benchmarks.slabs import replay

from aegaeon_native import CopyLane, Range, SlabPool

SIZES_MIB = (2, 4, 8, 16, 32)  # with 64 the replay runs out of slabs
NBYTES = 256 << 20
ROUNDS = 15
MOST_LOST = 0.10


@dataclass
class Sized:
    """A device of slabs of one size, all of them in a range in random order, and what was measured on it (seconds)."""

    mib: int
    pool: SlabPool
    range: Range
    slabs: list[int]
    mapping: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)

    @staticmethod
    def of(mib: int) -> Sized:
        count = NBYTES // (mib << 20)
        pool = SlabPool.private(f"slabs-{mib}", mib << 20, count)
        slabs = pool.take(count)
        random.Random(mib).shuffle(slabs)
        made = Sized(mib, pool, Range(pool, count), slabs)
        made.range.map(0, slabs)
        made.range.view(0, NBYTES)[:] = 1  # its pages exist
        made.range.unmap(0, count)
        return made

    def load(self, lane: CopyLane, source: int) -> None:
        begin = time.perf_counter()
        self.range.map(0, self.slabs)
        mapped = time.perf_counter()
        lane.copy(self.range.address, source, NBYTES)
        lane.synchronize()
        self.loading.append(time.perf_counter() - begin)
        copied = time.perf_counter()
        self.range.unmap(0, len(self.slabs))
        self.mapping.append(mapped - begin + time.perf_counter() - copied)


def measure(source: int, sizes: list[Sized], lane: CopyLane) -> list[float]:
    """Every size in every round; returns the seconds of a plain memcpy in each."""
    plain = []
    target = Range(sizes[0].pool, len(sizes[0].slabs))
    target.map(0, sorted(sizes[0].slabs))
    for number in range(ROUNDS + 1):
        begin = time.perf_counter()
        ctypes.memmove(target.address, source, NBYTES)
        plain.append(time.perf_counter() - begin)
        for size in random.Random(number).sample(sizes, len(sizes)):
            size.load(lane, source)
    target.close()
    return plain[1:]


def rows(size: Sized, plain: list[float]) -> list[Row]:
    lost = replay(size.mib)[0]
    share = statistics.median(copy / load for copy, load in zip(plain, size.loading[1:], strict=True))
    per_gib_ms = statistics.median(size.mapping[1:]) * (1 << 30) / NBYTES * 1e3
    return [
        Row(f"slabs of {size.mib} MiB: fragmentation", lost, "of the pool", MOST_LOST, "<="),
        Row(f"slabs of {size.mib} MiB: map and unmap a GiB, in no order", per_gib_ms, "ms"),
        Row(f"slabs of {size.mib} MiB: a load, mapping included, beside memcpy", share, "x"),
    ]


def main() -> int:
    path = Path("/dev/shm") / f"aegaeon-bench-{os.getpid()}"
    host = SlabPool.shared(str(path), 2 << 20, NBYTES >> 21)
    lane, sizes = CopyLane("bench"), [Sized.of(mib) for mib in SIZES_MIB]
    try:
        ctypes.memset(host.address, 7, NBYTES)
        plain = measure(host.address, sizes, lane)
        measured = [row for size in sizes for row in rows(size, plain)]
    finally:
        lane.close()
        for size in sizes:
            size.range.close()
            size.pool.close()
        host.close()
    return 0 if report("slab_sizes", measured) else 1


if __name__ == "__main__":
    sys.exit(main())
