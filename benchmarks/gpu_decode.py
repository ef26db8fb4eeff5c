"""A decode step of a 7B-shaped random model, launched ahead, beside the time in which its weights can be read once."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from benchmarks.gpu_rig import GB, SLAB_BYTES, gpu, median_s, memory_rate, seven_b
from benchmarks.report import Row, report
from torch.utils.dlpack import from_dlpack

from aegaeon_native import BlockPool, Range, SlabPool
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.sampling import SamplerState

STEPS = 32
CONTEXT = 500
BATCHES = (1, 4, 8, 16)


def step_s(backend: TorchBackend, blocks: BlockPool, batch: int, samplers: list[SamplerState]) -> float:
    """Seconds of one step of STEPS, each launched before the tokens of the one before are read."""
    tables = [blocks.allocate(-(-(CONTEXT + STEPS) // 16), 2**30) for _ in range(batch)]

    def turn() -> None:
        before = None
        for step in range(STEPS):
            first = before is None
            parts = [
                StepInput([5] if first else (), CONTEXT + step, table, samplers[row], None if first else row)
                for row, table in enumerate(tables)
            ]
            launched = backend.launch("model", parts, before)
            if before is not None:
                before.results()
            before = launched
        assert before is not None
        before.results()

    turn()
    seconds = median_s(turn, 5) / STEPS
    for table in tables:
        blocks.release(table)
    return seconds


def main() -> int:
    device = gpu()
    rate = memory_rate()
    with tempfile.TemporaryDirectory() as folder:
        directory, layout = seven_b(Path(folder))
        backend = TorchBackend(device="cuda:0", dtype="bfloat16")
        slabs = -(-layout.weight_bytes // SLAB_BYTES)
        pool = SlabPool.cuda(device, SLAB_BYTES, slabs + 192)
        weights, blocks = Range(pool, slabs), BlockPool(pool, layout.kv_block_bytes, 192)
        weights.map(0, pool.take(slabs))
        from_dlpack(weights.dlpack(0, layout.weight_bytes)).view(torch.bfloat16).normal_(std=0.02)
        backend.register("model", directory, layout, weights.dlpack(0, layout.weight_bytes))
        backend.bind_kv(layout.kv_shape, blocks.dlpack())
        limit = layout.weight_bytes / rate
        rows = [Row("memory read rate", rate / GB, "GB/s"), Row("weights", layout.weight_bytes / GB, "GB")]
        for batch in BATCHES:
            greedy = step_s(backend, blocks, batch, [SamplerState()] * batch)
            kv = batch * CONTEXT * layout.kv_block_bytes / 16 / rate
            rows.append(
                Row(f"step, batch {batch}, {CONTEXT} tokens of context", greedy * 1e3, "ms", limit * 1e3, "<=", 1.3)
            )
            rows.append(
                Row(
                    f"the same, its KV reads counted: {kv * 1e3:.2f} ms",
                    greedy * 1e3,
                    "ms",
                    (limit + kv) * 1e3,
                    "<=",
                    1.3,
                )
            )
        drawn = [SamplerState(temperature=0.8, top_p=0.95, seed=row) for row in range(8)]
        rows.append(Row("step, batch 8, seeded draws with top-p", step_s(backend, blocks, 8, drawn) * 1e3, "ms"))
        synchronous = [StepInput([5], CONTEXT, blocks.allocate(40, 2**30), SamplerState())]
        rows.append(
            Row("step, batch 1, waited for", median_s(lambda: backend.step("model", synchronous), 21) * 1e3, "ms")
        )
    assert np.isfinite([row.value for row in rows]).all()
    return 0 if report("gpu_decode", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
