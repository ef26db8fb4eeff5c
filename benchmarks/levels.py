"""What a processor without AVX-512 costs: steps of few rows as with AVX2 beside those with all that this one has.

A process of each level has the same random Qwen3 of 8 layers (CPU, float32, one thread); they compute in turn, the same
steps. `AEGAEON_CPU_LEVEL` is what lowers the level. Skipped where there is no AVX-512. The same with the helpers of
`aegaeon up`: where a processor is idle.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from benchmarks.random_qwen3 import MODEL, hold, save
from benchmarks.report import Row, report

from aegaeon_native import cpu_level, set_product_helpers
from aegaeon_native.libraries import LEVEL, lower_libraries

COUNTS = (1, 4, 8)
PROMPT, BLOCKS, STEPS, ROUNDS = 200, 16, 20, 15
_VOCAB = 32_000
_BAR = 1.3


def serve(folder: Path) -> None:
    """A line of stdin: how many rows, and helpers; a line of stdout: the median seconds of STEPS such steps."""
    from aegaeon_proto.engine.sampling import SamplingParams
    from aegaeon_sidecar.backends import StepInput
    from aegaeon_sidecar.backends.torch import TorchBackend, configure_threads
    from aegaeon_sidecar.sampling import SamplerState

    configure_threads(1)
    engine = TorchBackend()
    hold(engine, folder, max(COUNTS) * BLOCKS)
    tables = [np.arange(i * BLOCKS, (i + 1) * BLOCKS, dtype=np.int32) for i in range(max(COUNTS))]
    for table in tables:
        engine.logits(MODEL, [StepInput([7] * PROMPT, 0, table, None)])
    greedy = SamplerState(SamplingParams(temperature=0.0))
    for line in sys.stdin:
        count, helpers = map(int, line.split())
        set_product_helpers(helpers)
        inputs = [StepInput([9], PROMPT, table, greedy) for table in tables[:count]]
        seconds = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            engine.step(MODEL, inputs)
            seconds.append(time.perf_counter() - begin)
        print(statistics.median(seconds), flush=True)


class Process:
    """An engine of one level."""

    def __init__(self, level: str, folder: Path) -> None:
        environment = {**os.environ, LEVEL: level}
        lower_libraries(environment)
        command = (sys.executable, "-m", "benchmarks.levels", str(folder))
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def step_s(self, rows: int, helpers: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(rows, helpers, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def measure(folder: Path) -> list[Row]:
    """Each round takes every figure once, so that other load of the machine affects all alike."""
    cases = [(rows, helpers) for rows in COUNTS for helpers in (0, 1)]
    seconds: dict[tuple[str, int, int], list[float]] = {}
    with ExitStack() as processes:
        engines = {level: Process(level, folder) for level in ("avx512", "avx2")}
        for engine in engines.values():
            processes.enter_context(engine.process)
        for _ in range(ROUNDS):
            for rows, helpers in cases:
                for level, engine in engines.items():
                    seconds.setdefault((level, rows, helpers), []).append(engine.step_s(rows, helpers))
        for engine in engines.values():
            assert engine.process.stdin is not None
            engine.process.stdin.close()
    median = {case: 1e3 * statistics.median(taken) for case, taken in seconds.items()}
    between_levels = [
        Row(
            f"step of {rows} rows, AVX2 (limit: AVX-512)",
            median["avx2", rows, 0],
            "ms",
            median["avx512", rows, 0],
            "<=",
            _BAR,
        )
        for rows in COUNTS
    ]
    return between_levels + [
        Row(
            f"the same with a helper, {rows} rows, {level}",
            median[level, rows, 1],
            "ms",
            median[level, rows, 0],
            "<=",
            1.05,
        )
        for level in engines
        for rows in COUNTS
    ]


def main() -> bool:
    if cpu_level() != "avx512":
        print(f"skipped: the processor's level is {cpu_level()}, so there is nothing to be compared with")
        return True
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), vocab_size=_VOCAB, max_position_embeddings=BLOCKS * 16, tie_word_embeddings=True)
        return report("levels", measure(Path(folder)))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(Path(sys.argv[1]))
    else:
        sys.exit(0 if main() else 1)
