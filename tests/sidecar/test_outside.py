"""Memory beside the slabs is counted, that of slabs is not."""

from __future__ import annotations

import numpy as np

from aegaeon_native import SlabPool
from aegaeon_sidecar.memory.outside import outside_bytes

MIB = 1 << 20


def test_memory_of_arrays_counts_and_memory_of_slabs_does_not() -> None:
    before = outside_bytes()
    array = np.ones(64 * MIB, dtype=np.uint8)
    counted = outside_bytes() - before
    pool = SlabPool.private("t", MIB, 64)
    for slab in range(64):
        pool.prefault(slab)
    with_slabs = outside_bytes() - before
    pool.close()
    assert 60 * MIB < counted < 80 * MIB
    assert abs(with_slabs - counted) < 16 * MIB
    assert array[0] == 1
