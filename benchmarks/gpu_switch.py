"""A switch of 16 GB from page-locked host memory into mapped slabs, beside the link; and to a resident model."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from benchmarks.gpu_rig import SEVEN_B, SLAB_BYTES, Bench, begin, layout_of, link_rates
from benchmarks.report import Row
from torch.utils.dlpack import from_dlpack

from aegaeon_native import BlockPool, CopyLane, EventTable, Range
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.sampling import SamplerState

NBYTES = 16 * 10**9
ROUNDS = 5


def switches(bench: Bench, nbytes: int) -> tuple[float, float]:
    """Median seconds from unmapping a model of so many bytes to the last byte of another; of the mapping in it."""
    slabs = -(-nbytes // SLAB_BYTES)
    pool, lane, events = bench.pool(slabs), CopyLane("weights", device=bench.gpu), EventTable.private(8)
    one, other = Range(pool, slabs), Range(pool, slabs)
    image = torch.zeros(nbytes, dtype=torch.uint8)
    if bench.gpu is not None:
        bench.gpu.lock_pages(image.data_ptr(), nbytes)
    one.map(0, pool.take(slabs))
    whole, mapping = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        other.map(0, one.unmap(0, slabs))
        mapping.append(time.perf_counter() - begin)
        lane.copy(other.address, image.data_ptr(), nbytes)
        done = events.event()
        lane.record(done)
        done.wait(60)
        whole.append(time.perf_counter() - begin)
        one, other = other, one
    lane.close()
    if bench.gpu is not None:
        bench.gpu.unlock_pages(image.data_ptr())
    one.close()
    pool.close()
    return sorted(whole)[ROUNDS // 2], sorted(mapping)[ROUNDS // 2]


def resident(bench: Bench) -> tuple[float, float]:
    """Median seconds of a decode step of a model again and again, and when two take turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        layout = layout_of(folder, bench.shape(SEVEN_B))
        backend = TorchBackend(device=bench.device, dtype="bfloat16")
        each = -(-layout.weight_bytes // SLAB_BYTES)
        pool = bench.pool(2 * each + 32)
        blocks = BlockPool(pool, layout.kv_block_bytes, 32)
        backend.bind_kv(layout.kv_shape, blocks.dlpack())
        for model in ("one", "other"):
            weights = Range(pool, each)
            weights.map(0, pool.take(each))
            from_dlpack(weights.dlpack(0, layout.weight_bytes)).zero_()
            backend.register(model, folder, layout, weights.dlpack(0, layout.weight_bytes))
        part = [StepInput([1], 0, blocks.allocate(1, 32), SamplerState())]
        for model in ("one", "other"):
            backend.step(model, part)

        def step(model: str) -> float:
            begin = time.perf_counter()
            backend.step(model, part)
            return time.perf_counter() - begin

        rounds = bench.sized(25, 2)
        same = [step("one") for _ in range(2 * rounds)]
        turns = [step(model) for _ in range(rounds) for model in ("one", "other")]
        return float(np.median(same)), float(np.median(turns))


def main() -> int:
    bench, _ = begin("gpu_switch", __doc__)
    link, _ = link_rates(bench.device, bench.sized(1 << 30, 1 << 24))
    nbytes = bench.sized(NBYTES, 2 * SLAB_BYTES)
    whole, mapping = switches(bench, nbytes)
    name = f"switch of {nbytes / 1e9:.3g} GB (limit: bytes / pinned rate in this run)"
    bench.figures.add(
        Row(name, whole, "s", nbytes / link, "<=", 1.15), Row("of it mapping and unmapping", mapping * 1e3, "ms")
    )
    same, turns = resident(bench)
    bench.figures.add(
        Row("switch to a resident model, beyond the step", (turns - same) * 1e3, "ms", 10.0, "<="),
        Row("a step of that model", same * 1e3, "ms"),
    )
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
