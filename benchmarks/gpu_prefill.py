"""Prefill of a random 8B beside the dense peak that a large product reaches in the same run.

Before it prompts of many lengths, each for the first time. `--sweep`: prompts of 512 to 32,768 tokens by chunks of 512
to 8192. Operations: two for each weight of a layer and token, and the lower half of attention's scores and sums; the
host's planning counts, as the clock is the host's.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_rig import EIGHT_B, MODEL, Bench, Placed, begin, matmul_rate, median_s, placed
from benchmarks.report import Row

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.models.config import DecoderSpec, read_spec
from aegaeon_sidecar.models.tensors import tensor_shapes
from aegaeon_sidecar.sampling import SamplerState

BAR_PROMPT, BAR_CHUNK = 8192, 8192
SWEEP_PROMPTS, SWEEP_CHUNKS = (512, 2048, 8192, 32768), (512, 2048, 8192)
FIRST_LENGTHS, _SMALL_FIRST_LENGTHS = range(1031, 2048, 61), range(33, 60, 7)
_SMALL_PROMPTS, _SMALL_CHUNKS = (32, 128), (32, 64)


def prefill_s(model: Placed, prompt: int, chunk: int, rounds: int) -> float:
    """Seconds from the first chunk's launch to the first token."""
    table = model.blocks.allocate(-(-prompt // 16), 2**30)

    def run() -> None:
        for done in range(0, prompt, chunk):
            end = min(prompt, done + chunk)
            sampler = SamplerState() if end == prompt else None
            model.backend.step(MODEL, [StepInput([5] * (end - done), done, table, sampler)])

    run()
    seconds = median_s(run, rounds)
    model.blocks.release(table)
    return seconds


def first_uses(model: Placed, lengths: range) -> Row:
    """Prompts of lengths that were not met before, beside the same again: what is planned or compiled by length."""
    table = model.blocks.allocate(-(-lengths[-1] // 16), 2**30)

    def seconds() -> list[float]:
        return [
            median_s(lambda n=n: model.backend.step(MODEL, [StepInput([5] * n, 0, table, SamplerState())]), 1)
            for n in lengths
        ]

    first, again = sum(seconds()), sum(seconds())
    model.blocks.release(table)
    figure = (
        f"{len(lengths)} prompts of {lengths[0]} to {lengths[-1]} tokens, each length for the first time (limit: again)"
    )
    return Row(figure, first * 1e3, "ms", again * 1e3, "<=", 1.3)


def operations(spec: DecoderSpec, prompt: int) -> float:
    """Of one prompt: products with the layers' weights, and causal attention (scores and sums over the lower half)."""
    layers = sum(a[0] * a[1] for name, a in tensor_shapes(spec).items() if ".layers." in name and len(a) == 2)
    attention = 2 * spec.layers * spec.heads * spec.head_dim * prompt * prompt
    return 2.0 * layers * prompt + attention


def main() -> int:
    bench, given = begin("gpu_prefill", __doc__, sweep=True)
    peak = matmul_rate(bench.device, bench.sized(8192, 256))
    bench.figures.add(Row("dense peak, bfloat16, measured", peak / 1e12, "TFLOP/s"))
    prompts = bench.sized(SWEEP_PROMPTS, _SMALL_PROMPTS) if given.sweep else (bench.sized(BAR_PROMPT, 128),)
    chunks = bench.sized(SWEEP_CHUNKS, _SMALL_CHUNKS) if given.sweep else (bench.sized(BAR_CHUNK, 128),)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with placed(bench, folder, bench.shape(EIGHT_B), max(prompts) + 16) as model:
            bench.figures.add(first_uses(model, bench.sized(FIRST_LENGTHS, _SMALL_FIRST_LENGTHS)))
            _run(bench, model, read_spec(folder), peak, prompts, chunks)
    return bench.status


def _run(
    bench: Bench, model: Placed, spec: DecoderSpec, peak: float, prompts: tuple[int, ...], chunks: tuple[int, ...]
) -> None:
    for prompt in prompts:
        for chunk in chunks:
            if chunk > prompt:
                continue
            began = time.perf_counter()
            seconds = prefill_s(model, prompt, chunk, 3)
            reached, what = operations(spec, prompt) / seconds, f"prompt {prompt}, chunk {chunk}"
            bench.figures.add(Row(f"{what}: to its first token", seconds * 1e3, "ms"))
            bar = 0.5 if (prompt, chunk) == (BAR_PROMPT, BAR_CHUNK) else 0.0
            limit = peak / 1e12
            bench.figures.add(Row(f"{what} (limit: dense peak)", reached / 1e12, "TFLOP/s", limit, ">=", bar))
            print(f"{time.perf_counter() - began:.1f} s for these", flush=True)


if __name__ == "__main__":
    sys.exit(main())
