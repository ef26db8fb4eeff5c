"""How far logits move when only the company in the batch changes, and what it would cost that they do not.

CPU, float32. A matrix library picks its kernel by the number of rows, so a row's sums are added up in another order in
another batch. Two cures are measured: every row alone, and the backend's own (rows padded, attention by length).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from benchmarks.random_qwen3 import MODEL, hold, save
from benchmarks.report import Row, report
from numpy.typing import NDArray

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend, configure_threads

BATCH = 8
STEPS = 24
REPEATS = 20
VOCAB = 8192
BLOCKS = 32  # of 16 tokens, for each sequence
LENGTHS = [40 + 29 * i for i in range(BATCH)]

Forward = Callable[[Sequence[StepInput]], torch.Tensor]


def prefilled(directory: Path, batch_invariant: bool) -> TorchBackend:
    """An engine that holds BATCH sequences of different lengths."""
    engine = TorchBackend(batch_invariant=batch_invariant)
    hold(engine, directory, BATCH * BLOCKS)
    generator = np.random.default_rng(1)
    for i, length in enumerate(LENGTHS):
        engine.logits(MODEL, [StepInput(generator.integers(0, VOCAB, length).tolist(), 0, table(i), None)])
    return engine


def table(sequence: int) -> NDArray[np.int32]:
    return np.arange(sequence * BLOCKS, (sequence + 1) * BLOCKS, dtype=np.int32)


def ways(directory: Path) -> dict[str, Forward]:
    """Three ways to run a batch."""
    plain, invariant = prefilled(directory, batch_invariant=False), prefilled(directory, batch_invariant=True)
    return {
        "plain": lambda inputs: plain.logits(MODEL, inputs),
        "row by row": lambda inputs: torch.cat([plain.logits(MODEL, [part]) for part in inputs]),
        "invariant": lambda inputs: invariant.logits(MODEL, inputs),
    }


def companies(way: Forward, inputs: Sequence[StepInput]) -> list[torch.Tensor]:
    """The same sequences in other batches: each alone, three and five, the other way round."""
    alone = torch.cat([way(inputs[i : i + 1]) for i in range(BATCH)])
    return [alone, torch.cat([way(inputs[:3]), way(inputs[3:])]), way(inputs[::-1]).flip(0)]


def median_ms(way: Forward, inputs: Sequence[StepInput]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        way(inputs)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


def measure(name: str, way: Forward) -> list[Row]:
    moved, changed = 0.0, 0
    tokens = np.random.default_rng(2).integers(0, VOCAB, BATCH).tolist()
    for step in range(STEPS):
        inputs = [StepInput([token], LENGTHS[i] + step, table(i), None) for i, token in enumerate(tokens)]
        full = way(inputs)
        for other in companies(way, inputs):
            moved = max(moved, float((full - other).abs().max()))
            changed += int((full.argmax(-1) != other.argmax(-1)).sum())
        tokens = full.argmax(-1).tolist()
    return [
        Row(f"{name}: logits move with the batch by at most", moved, "logit"),
        Row(f"{name}: greedy tokens that change with it", changed, "tokens"),
        Row(f"{name}: step of {BATCH}", median_ms(way, inputs), "ms"),
        Row(f"{name}: step of 1", median_ms(way, inputs[:1]), "ms"),
    ]


def main() -> bool:
    configure_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        save(Path(directory), vocab_size=VOCAB, max_position_embeddings=BLOCKS * 16, initializer_range=0.05)
        rows = [row for name, way in ways(Path(directory)).items() for row in measure(name, way)]
    return report("batch_invariance", rows)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
