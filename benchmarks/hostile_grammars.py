"""Hostile constraints from a seed, each as a gateway and an engine treat it, beside an innocent structured output.

`python -m benchmarks.hostile_grammars [COUNT] [SEED]`; the seed is the commit by default. Each constraint is compiled
by a gateway's `Compiler`; what it takes is opened by two sequences in the engine's `Grammars`, which take up to 16
tokens in steps that they share with the innocent sequence. Only those parts run, which are all that meet grammars.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
from benchmarks.random_grammars import constraint
from benchmarks.report import Row, report
from benchmarks.structured import CONSTRAINT, EOS, VOCAB, save_model

from aegaeon_gateway.workers.grammars import compiler_of
from aegaeon_proto.process_limits import raise_on_cpu_timer, resident
from aegaeon_sidecar.domain.sequences import Constraint
from aegaeon_sidecar.sampling import Masker, SamplerState
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary

COUNT, STEPS, HUNG_S, LATE_S = 2000, 16, 30.0, 5.0


class Innocent:
    """Follows its schema, always with the first token that is allowed, and knows what that gives alone."""

    def __init__(self, grammars: Grammars, vocabulary: Vocabulary, masker: Masker) -> None:
        self._guide = lambda: grammars.guide(vocabulary, CONSTRAINT, lambda: None)
        self._masker = masker
        self.state, self.at = SamplerState(guide=self._guide()), 0
        self.alone = [self.step([])[0] for _ in range(64)]
        self.state = SamplerState(guide=self._guide())

    def step(self, others: list[SamplerState]) -> tuple[int, list[SamplerState]]:
        """Its next token; those of the others that go on, each with its own."""
        token, living = self._next(self.state, others)
        self.state.accept(token)
        return token, living

    def same(self, token: int) -> bool:
        """As alone; begins anew behind the last."""
        right = token == self.alone[self.at]
        self.at += 1
        if self.at == len(self.alone):
            self.state, self.at = SamplerState(guide=self._guide()), 0
        return right

    def _next(self, mine: SamplerState, others: list[SamplerState]) -> tuple[int, list[SamplerState]]:
        masks = self._masker.masks([mine, *others], VOCAB)
        assert masks is not None
        living = []
        for row, other in enumerate(others, 1):
            token = int(np.argmax(masks.allowed[row]))
            if row not in masks.refused and token != EOS:
                other.accept(token)
                living.append(other)
        return -1 if 0 in masks.refused else int(np.argmax(masks.allowed[0])), living


def main(count: int, seed: str) -> bool:
    outcomes: Counter[str] = Counter()
    raise_on_cpu_timer()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        compiler, vocabulary = compiler_of(Path(folder), VOCAB, (EOS,)), Vocabulary(Path(folder), VOCAB)
        grammars, masker, chance = Grammars(), Masker(), Random(seed)
        innocent = Innocent(grammars, vocabulary, masker)
        before, slowest = resident(), 0.0
        for _ in range(count):
            kind, text = constraint(chance)
            begin = time.monotonic()
            if compiler.fault(kind, text):
                outcomes["refused"] += 1
            else:
                one = Constraint(kind, text, (EOS,), compiler.proof, b"hostile")
                others = [SamplerState(guide=grammars.guide(vocabulary, one, lambda: None)) for _ in range(2)]
                outcomes["followed"] += 1
                for _ in range(STEPS):
                    stepped = time.monotonic()
                    ready = [other for other in others if other.guide is not None and other.guide.ready]
                    token, living = innocent.step(ready)
                    others = [other for other in others if other not in ready or other in living]
                    slowest = max(slowest, time.monotonic() - stepped)
                    outcomes["different"] += not innocent.same(token)
                    outcomes["late"] += time.monotonic() - stepped > LATE_S
            outcomes["hung"] += time.monotonic() - begin > HUNG_S
        grown = (resident() - before) / (1 << 20)
        grammars.stop()
    return report(
        "hostile_grammars",
        [
            Row(f"constraints of seed {seed[:12]}", count, ""),
            Row("of them followed", outcomes["followed"], ""),
            Row("innocent steps that differ", outcomes["different"], "", 0, "<="),
            Row(f"innocent steps later than {LATE_S:g} s", outcomes["late"], "", 0, "<="),
            Row("slowest innocent step", slowest * 1e3, "ms"),
            Row(f"constraints that took longer than {HUNG_S:g} s", outcomes["hung"], "", 0, "<="),
            Row("growth of the engine's process", grown, "MiB", 64, "<="),
        ],
    )


def _commit() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    asked = sys.argv[1:]
    raise SystemExit(0 if main(int(asked[0]) if asked else COUNT, asked[1] if asked[1:] else _commit()) else 1)
