"""A switch of 15 GB from page-locked host memory into mapped slabs, beside the link; and to a resident model."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from benchmarks.gpu_rig import SLAB_BYTES, gpu, link_rates, seven_b
from benchmarks.report import Row, report
from torch.utils.dlpack import from_dlpack

from aegaeon_native import BlockPool, CopyLane, CudaDevice, EventTable, Range, SlabPool
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.sampling import SamplerState

NBYTES = 15 * 10**9
ROUNDS = 5


def switches(device: CudaDevice) -> tuple[float, float]:
    """Median seconds from unmapping one model of 15 GB to the last byte of another; and of the mapping in it."""
    slabs = -(-NBYTES // SLAB_BYTES)
    pool, lane, events = (
        SlabPool.cuda(device, SLAB_BYTES, slabs),
        CopyLane("weights", device=device),
        EventTable.private(8),
    )
    one, other = Range(pool, slabs), Range(pool, slabs)
    image = torch.zeros(NBYTES, dtype=torch.uint8)
    device.lock_pages(image.data_ptr(), NBYTES)
    one.map(0, pool.take(slabs))
    whole, mapping = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        other.map(0, one.unmap(0, slabs))
        mapping.append(time.perf_counter() - begin)
        lane.copy(other.address, image.data_ptr(), NBYTES)
        done = events.event()
        lane.record(done)
        done.wait(60)
        whole.append(time.perf_counter() - begin)
        one, other = other, one
    lane.close()
    device.unlock_pages(image.data_ptr())
    one.close()
    pool.close()
    return sorted(whole)[ROUNDS // 2], sorted(mapping)[ROUNDS // 2]


def resident(device: CudaDevice) -> tuple[float, float]:
    """Median seconds of a decode step of a tiny model again and again, and when two take turns."""
    with tempfile.TemporaryDirectory() as folder:
        directory, layout = seven_b(Path(folder))
        backend = TorchBackend(device="cuda:0", dtype="bfloat16")
        pool = SlabPool.cuda(device, SLAB_BYTES, 2 * -(-layout.weight_bytes // SLAB_BYTES) + 32)
        blocks = BlockPool(pool, layout.kv_block_bytes, 32)
        backend.bind_kv(layout.kv_shape, blocks.dlpack())
        for name in ("one", "other"):
            weights = Range(pool, -(-layout.weight_bytes // SLAB_BYTES))
            weights.map(0, pool.take(weights.slabs))
            from_dlpack(weights.dlpack(0, layout.weight_bytes)).zero_()
            backend.register(name, directory, layout, weights.dlpack(0, layout.weight_bytes))
        part = [StepInput([1], 0, blocks.allocate(1, 32), SamplerState())]
        for name in ("one", "other"):
            backend.step(name, part)

        def step(name: str) -> float:
            begin = time.perf_counter()
            backend.step(name, part)
            return time.perf_counter() - begin

        same = [step("one") for _ in range(50)]
        turns = [step(name) for _ in range(25) for name in ("one", "other")]
        return float(np.median(same)), float(np.median(turns))


def main() -> int:
    device = gpu()
    link, _ = link_rates()
    whole, mapping = switches(device)
    same, turns = resident(device)
    rows = [
        Row("switch of 15 GB (limit: bytes / pinned rate in this run)", whole, "s", NBYTES / link, "<=", 1.15),
        Row("of it mapping and unmapping", mapping * 1e3, "ms"),
        Row("switch to a resident model, beyond the step", (turns - same) * 1e3, "ms", 2.0, "<="),
        Row("a step of that model", same * 1e3, "ms"),
    ]
    return 0 if report("gpu_switch", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
