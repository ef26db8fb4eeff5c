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
from benchmarks.report import Row, report
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend, configure_threads
from aegaeon_sidecar.models.weight_files import look
from aegaeon_sidecar.weights.fill import fill
from aegaeon_sidecar.weights.ring import StageRing

BATCH = 8
STEPS = 24
REPEATS = 20
VOCAB = 8192
BLOCKS = 32  # of 16 tokens, for each sequence
LENGTHS = [40 + 29 * i for i in range(BATCH)]

Forward = Callable[[Sequence[StepInput]], torch.Tensor]


def save_model(directory: Path) -> None:
    """A random Qwen3 of 8 layers."""
    config = AutoConfig.for_model(
        "qwen3",
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        vocab_size=VOCAB,
        max_position_embeddings=BLOCKS * 16,
        initializer_range=0.05,
    )
    torch.manual_seed(0)
    disable_progress_bar()
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(directory)


def prefilled(directory: Path, batch_invariant: bool) -> TorchBackend:
    """An engine that holds BATCH sequences of different lengths."""
    engine = TorchBackend(batch_invariant=batch_invariant)
    layout = engine.describe(directory, 0)
    weights = np.empty(layout.weight_bytes, dtype=np.uint8)
    engine.register("model", directory, layout, weights)
    fill(look(directory, layout), [weights], StageRing())
    engine.bind_kv(layout.kv_shape, np.zeros(BATCH * BLOCKS * layout.kv_block_bytes, dtype=np.uint8))
    generator = np.random.default_rng(1)
    for i, length in enumerate(LENGTHS):
        engine.logits("model", [StepInput(generator.integers(0, VOCAB, length).tolist(), 0, table(i), None)])
    return engine


def table(sequence: int) -> NDArray[np.int32]:
    return np.arange(sequence * BLOCKS, (sequence + 1) * BLOCKS, dtype=np.int32)


def ways(directory: Path) -> dict[str, Forward]:
    """Three ways to run a batch."""
    plain, invariant = prefilled(directory, batch_invariant=False), prefilled(directory, batch_invariant=True)
    return {
        "plain": lambda inputs: plain.logits("model", inputs),
        "row by row": lambda inputs: torch.cat([plain.logits("model", [part]) for part in inputs]),
        "invariant": lambda inputs: invariant.logits("model", inputs),
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
        save_model(Path(directory))
        rows = [row for name, way in ways(Path(directory)).items() for row in measure(name, way)]
    return report("batch_invariance", rows)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
