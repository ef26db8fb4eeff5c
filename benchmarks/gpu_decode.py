"""Decode steps of random models, launched ahead, beside the time in which the bytes they must read can be read once.

A 7B's shape has as many key heads as query heads: 16 sequences of 500 tokens read 1.3 times the weights' bytes in all.
So the bar of 1.3 times the weights is held against a short context there, and against 2048 tokens with an 8B's shape,
whose KV is a quarter as large. `--sweep`: contexts up to 131,072 tokens and batches up to 64 with a slice of an 8B's
layers, so that the KV fits; each is held against weights and KV together.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_kernels import kernel_rows, profiled
from benchmarks.gpu_rig import EIGHT_B, GB, MODEL, SEVEN_B, Bench, Placed, begin, median_s, memory_rate, placed
from benchmarks.report import Row

from aegaeon_proto.engine.sampling import SamplingParams
from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.sampling import SamplerState

STEPS, PROFILED = 32, 4
SHORT, LONG = 128, 500  # tokens of context with a 7B's shape
BATCHES = (1, 4, 8, 16)
BAR_CONTEXT, BAR_BATCH = 2048, 16  # with an 8B's
SWEEP_LAYERS = 4
SWEEP_CONTEXTS, SWEEP_BATCHES = (2048, 32768, 131072), (1, 16, 64)
_SPARE_BYTES = 10 << 30  # of the device: for weights, activations and graphs


def step_s(bench: Bench, model: Placed, context: int, samplers: list[SamplerState]) -> float:
    """Seconds of one step of STEPS, each launched before the tokens of the one before are read, except on a CPU."""
    return step_and_launch_s(bench, model, context, samplers)[0]


def step_and_launch_s(bench: Bench, model: Placed, context: int, samplers: list[SamplerState]) -> tuple[float, float]:
    """The same; and the median of what the host takes to launch one."""
    steps, rounds = bench.sized((STEPS, 5), (3, 1))
    taken: list[float] = []
    tables = [model.blocks.allocate(-(-(context + STEPS) // 16), 2**30) for _ in samplers]

    def turn() -> None:
        before: Launched | None = None
        for step in range(steps):
            first = before is None or bench.gpu is None
            parts = [
                StepInput([5] if first else (), context + step, table, samplers[row], None if first else row)
                for row, table in enumerate(tables)
            ]
            begin = time.perf_counter()
            launched = model.backend.launch(MODEL, parts, before)
            taken.append(time.perf_counter() - begin)
            if before is not None:
                before.results()
            before = launched
        assert before is not None
        before.results()

    turn()
    seconds = median_s(turn, rounds) / steps
    for table in tables:
        model.blocks.release(table)
    return seconds, statistics.median(taken)


def _kv_s(model: Placed, batch: int, context: int, rate: float) -> float:
    """Seconds in which the KV of a step in the middle of a turn is read."""
    return batch * (context + STEPS / 2) * model.layout.kv_block_bytes / 16 / rate


def first_steps(bench: Bench, model: Placed, name: str) -> None:
    """Of each kind of decode that is captured on its own, as a turn that warms up runs it. Simulated: 0.2 s."""
    table = model.blocks.allocate(1, 2**30)
    for least in model.backend.captured or (1,):
        start = time.perf_counter()
        model.backend.launch(MODEL, [StepInput([5], 0, table, None)] * least).results()
        seconds = time.perf_counter() - start
        bench.figures.add(Row(f"{name}: first step of {least} sequences or more", seconds * 1e3, "ms"))
    model.blocks.release(table)


def seven_b(bench: Bench, model: Placed, rate: float) -> None:
    """`rate`: bytes a second that the device reads from its memory."""
    figures, limit = bench.figures, model.layout.weight_bytes / rate
    figures.add(Row("7B: weights", model.layout.weight_bytes / GB, "GB"))
    for batch in bench.sized(BATCHES, (1, 4)):
        samplers = [SamplerState()] * batch
        short = step_s(bench, model, SHORT, samplers)
        figures.add(Row(f"7B: step, batch {batch}, {SHORT} tokens", short * 1e3, "ms", limit * 1e3, "<=", 1.3))
        long = step_s(bench, model, LONG, samplers)
        both = (limit + _kv_s(model, batch, LONG, rate)) * 1e3
        figures.add(Row(f"7B: step, batch {batch}, {LONG} tokens (limit: KV too)", long * 1e3, "ms", both, "<=", 1.3))
    drawn = [SamplerState(SamplingParams(temperature=0.8, top_p=0.95, seed=row)) for row in range(8)]
    drawn_s = step_s(bench, model, SHORT, drawn)
    figures.add(Row(f"7B: step, batch 8, {SHORT} tokens, top-p", drawn_s * 1e3, "ms", limit * 1e3, "<=", 1.3))
    single = [StepInput([5], LONG, model.blocks.allocate(40, 2**30), SamplerState())]
    waited = median_s(lambda: model.backend.step(MODEL, single), 21)
    figures.add(Row("7B: step, batch 1, waited for", waited * 1e3, "ms"))
    kernels = profiled(lambda: [model.backend.step(MODEL, single) for _ in range(PROFILED)])
    figures.add(*kernel_rows("7B: of that step", kernels, PROFILED, waited))


def eight_b(bench: Bench, model: Placed, rate: float) -> None:
    """The bars at 2K: the step, and what the host takes for one."""
    first_steps(bench, model, "8B")
    context, samplers = bench.sized(BAR_CONTEXT, 64), [SamplerState()] * BAR_BATCH
    limit = model.layout.weight_bytes / rate + _kv_s(model, BAR_BATCH, context, rate)
    seconds, host = step_and_launch_s(bench, model, context, samplers)
    name = f"8B: step, batch {BAR_BATCH}, {BAR_CONTEXT} tokens (limit: weights and KV)"
    bench.figures.add(Row(name, seconds * 1e3, "ms", limit * 1e3, "<=", 1.3))
    bench.figures.add(Row(f"8B: the host launches one, batch {BAR_BATCH}", host * 1e3, "ms", 0.5, "<="))


def sweep(bench: Bench, rate: float) -> None:
    """Contexts by batches; what does not fit in the device's memory is named."""
    free = bench.gpu.free_bytes - _SPARE_BYTES if bench.gpu is not None else 64 << 20
    config = bench.shape(EIGHT_B | {"num_hidden_layers": SWEEP_LAYERS})
    token_bytes = 4 * config["num_hidden_layers"] * config["num_key_value_heads"]
    token_bytes *= config["hidden_size"] // config["num_attention_heads"]
    for context in bench.sized(SWEEP_CONTEXTS, (64, 256)):
        for batch in bench.sized(SWEEP_BATCHES, (1, 4)):
            tokens = batch * (context + STEPS + 16)
            if tokens * token_bytes > free:
                print(f"batch {batch}, {context} tokens: does not fit in the device's memory", flush=True)
                continue
            with tempfile.TemporaryDirectory() as folder, placed(bench, Path(folder), config, tokens) as model:
                seconds = step_s(bench, model, context, [SamplerState()] * batch)
                limit = model.layout.weight_bytes / rate + _kv_s(model, batch, context, rate)
            name = f"{SWEEP_LAYERS} layers of an 8B: batch {batch}, {context} tokens (limit: weights and KV)"
            bench.figures.add(Row(name, seconds * 1e3, "ms", limit * 1e3, "<=", 1.3))


def main() -> int:
    bench, given = begin("gpu_decode", __doc__, sweep=True)
    rate = memory_rate(bench.device, bench.sized(4 << 30, 1 << 24))
    bench.figures.add(Row("memory read rate", rate / GB, "GB/s"))
    if given.sweep:
        sweep(bench, rate)
        return bench.status
    for config, measure, context in ((EIGHT_B, eight_b, BAR_CONTEXT), (SEVEN_B, seven_b, LONG)):
        tokens = BAR_BATCH * (context + STEPS + 16) + 1024
        with tempfile.TemporaryDirectory() as folder, placed(bench, Path(folder), bench.shape(config), tokens) as model:
            measure(bench, model, rate)
    return bench.status


if __name__ == "__main__":
    sys.exit(main())
