"""A decode step of a 7B-shaped random model, launched ahead, beside the time in which its weights can be read once.

The bar of 1.3 is held against a short context: 16 sequences of 500 tokens read 1.3 times the weights' bytes in all, as
this shape has as many key heads as query heads, so no engine could hold it there. Longer ones are for the record, and
held against the time of their KV as well.
"""

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
from aegaeon_sidecar.domain.sequences import SamplingParams
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.sampling import SamplerState

STEPS = 32
SHORT, LONG = 128, 500  # tokens of context: of the bar, for the record
BATCHES = (1, 4, 8, 16)


def step_s(backend: TorchBackend, blocks: BlockPool, context: int, samplers: list[SamplerState]) -> float:
    """Seconds of one step of STEPS, each launched before the tokens of the one before are read."""
    tables = [blocks.allocate(-(-(context + STEPS) // 16), 2**30) for _ in samplers]

    def turn() -> None:
        before = None
        for step in range(STEPS):
            first = before is None
            parts = [
                StepInput([5] if first else (), context + step, table, samplers[row], None if first else row)
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


def figures(backend: TorchBackend, blocks: BlockPool, layout: Layout, rate: float) -> list[Row]:
    """`rate`: bytes a second that this GPU reads from its memory."""
    limit = layout.weight_bytes / rate
    rows = [Row("memory read rate", rate / GB, "GB/s"), Row("weights", layout.weight_bytes / GB, "GB")]
    for batch in BATCHES:
        samplers = [SamplerState()] * batch
        short = step_s(backend, blocks, SHORT, samplers)
        rows.append(Row(f"step, batch {batch}, {SHORT} tokens", short * 1e3, "ms", limit * 1e3, "<=", 1.3))
        long = step_s(backend, blocks, LONG, samplers)
        kv = batch * (LONG + STEPS / 2) * layout.kv_block_bytes / 16 / rate
        rows += [
            Row(f"step, batch {batch}, {LONG} tokens", long * 1e3, "ms"),
            Row(f"batch {batch}, {LONG} tokens, beside its KV too", long * 1e3, "ms", (limit + kv) * 1e3, "<=", 1.3),
        ]
    drawn = [SamplerState(SamplingParams(temperature=0.8, top_p=0.95, seed=row)) for row in range(8)]
    drawn_s = step_s(backend, blocks, SHORT, drawn)
    rows.append(Row(f"step, batch 8, {SHORT} tokens, drawn with top-p", drawn_s * 1e3, "ms", limit * 1e3, "<=", 1.3))
    synchronous = [StepInput([5], LONG, blocks.allocate(40, 2**30), SamplerState())]
    rows.append(Row("step, batch 1, waited for", median_s(lambda: backend.step("model", synchronous), 21) * 1e3, "ms"))
    return rows


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
        rows = figures(backend, blocks, layout, rate)
    assert np.isfinite([row.value for row in rows]).all()
    return 0 if report("gpu_decode", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
