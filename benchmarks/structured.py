"""What constraints cost a step at batch 16: all rows constrained beside none, in turn, on the same engine.

CPU, one thread for the forward pass, float32; a random Qwen3 of 8 layers. Every constrained row follows a JSON schema
with strings, numbers and arrays, at a different place of its document.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from benchmarks.random_qwen3 import MODEL, hold, save
from benchmarks.report import Row, report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from aegaeon_proto.engine.sampling import Constraint, ConstraintKind, SamplingParams
from aegaeon_sidecar.backends import StepInput
from aegaeon_sidecar.backends.torch import TorchBackend, configure_threads
from aegaeon_sidecar.sampling import Masker, Sampled, SamplerState
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary

BATCH, STEPS, PROMPT, BLOCKS, EOS = 16, 160, 24, 16, 0
VOCAB = 32_000
CORPUS = Path(__file__).parent / "data" / "sharegpt_pairs.csv"
STRING = {"type": "string", "maxLength": 60}
ITEM = {
    "type": "object",
    "properties": {"name": STRING, "count": {"type": "integer"}, "tags": {"type": "array", "items": STRING}},
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": ITEM, "minItems": 50}
CONSTRAINT = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA), (EOS,))


def save_model(directory: Path) -> None:
    """A random Qwen3, and a byte-level BPE tokenizer of as many tokens as the corpus gives."""
    save(directory, vocab_size=VOCAB, max_position_embeddings=BLOCKS * 16, tie_word_embeddings=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train([str(CORPUS)], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))


class Batch:
    """An engine whose sequences have grown by one token with every step."""

    def __init__(self, directory: Path, grammars: Grammars) -> None:
        self.engine = TorchBackend()
        layout = hold(self.engine, directory, BATCH * BLOCKS)
        self._vocabulary, self._grammars = Vocabulary(directory, layout.vocab_size), grammars
        self.tables = [np.arange(i * BLOCKS, (i + 1) * BLOCKS, dtype=np.int32) for i in range(BATCH)]
        for i, table in enumerate(self.tables):
            self.engine.logits(MODEL, [StepInput([i + 7] * PROMPT, 0, table, None)])

    def samplers(self, *, constrained: bool) -> list[SamplerState]:
        """Of seeded draws."""
        params = SamplingParams(temperature=1.0, seed=1, constraint=CONSTRAINT if constrained else None)
        return [
            SamplerState(
                params,
                choice=i,
                guide=self._grammars.guide(self._vocabulary, CONSTRAINT, lambda: None) if constrained else None,
            )
            for i in range(BATCH)
        ]


def step(batch: Batch, samplers: list[SamplerState], tokens: list[int], at: int) -> float:
    """Seconds of a step at this position; its tokens are put into `tokens`, and accepted."""
    inputs = [
        StepInput([token], PROMPT + at, table, sampler)
        for token, table, sampler in zip(tokens, batch.tables, samplers, strict=True)
    ]
    begin = time.perf_counter()
    chosen = batch.engine.step(MODEL, inputs)
    seconds = time.perf_counter() - begin
    for row, (one, sampler) in enumerate(zip(chosen, samplers, strict=True)):
        assert isinstance(one, Sampled), one
        sampler.accept(one.token)
        tokens[row] = one.token
    return seconds


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def masks_us(batch: Batch) -> float:
    """Microseconds of a row's mask, on one thread, without a step beside it: median over rows in their first state."""
    masker, samplers = Masker(), batch.samplers(constrained=True)
    masker.masks(samplers, VOCAB)  # compiled and warm
    return statistics.median(timed(lambda: masker.masks(samplers, VOCAB)) for _ in range(20)) / BATCH * 1e6


def main() -> bool:
    configure_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        grammars = Grammars()
        batch = Batch(Path(folder), grammars)
        first_s = timed(lambda: Masker().masks(batch.samplers(constrained=True), VOCAB))
        rows = {kind: batch.samplers(constrained=kind) for kind in (False, True)}
        tokens = {kind: [9] * BATCH for kind in rows}
        seconds: dict[bool, list[float]] = {kind: [] for kind in rows}
        for at in range(STEPS):
            for kind, samplers in rows.items():  # in turn, at the same positions
                seconds[kind].append(step(batch, samplers, tokens[kind], at))
        free, bound = (statistics.median(seconds[kind]) * 1e3 for kind in (False, True))
        p99 = {kind: float(np.percentile(seconds[kind], 99)) * 1e3 for kind in rows}
        figures = [
            Row(f"step of {BATCH}, no row constrained, median", free, "ms"),
            Row(f"step of {BATCH}, all rows constrained, median", bound, "ms", free, "<=", 1.1),
            Row("p99: no row, ms", p99[False], "ms"),
            Row("p99: all rows, ms", p99[True], "ms"),
            Row(f"mask of a row, vocabulary {VOCAB}, one thread, with unpacking", masks_us(batch), "us"),
            Row("first request: tokenizer and schema", first_s * 1e3, "ms"),
        ]
        grammars.stop()
    return report("structured", figures)


if __name__ == "__main__":
    raise SystemExit(0 if main() else 1)
