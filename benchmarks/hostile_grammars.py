"""Hostile constraints from a seed, each as gateways and an engine treat it, beside an innocent structured output.

Two gateways' processes compile them with the model's tokenizer. What they take is opened by two sequences each in the
engine's `Grammars`, for one of two hostile tenants, up to AT_ONCE constraints at a time; each sequence takes STEPS
tokens, in steps that all share with the innocent one. Only those parts run, which are all that meet grammars.

`python -m benchmarks.hostile_grammars [--count N] [--seed SEED]`. `--journal FILE --seconds N`: for so long, from where
the file's last sitting ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter, deque
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from benchmarks.journal import Journal
from benchmarks.random_grammars import constraint
from benchmarks.report import Row, report
from benchmarks.structured import CONSTRAINT, EOS, VOCAB, save_model

from aegaeon_gateway.workers.grammars import Compiler, compiler_of
from aegaeon_proto.engine.sampling import Constraint
from aegaeon_proto.process_limits import raise_on_cpu_timer, resident
from aegaeon_sidecar.sampling import Masker, SamplerState
from aegaeon_sidecar.sampling.grammars import Grammars, Vocabulary

COUNT, SEED, STEPS, AT_ONCE = 2000, "48", 16, 8
GATEWAYS, TENANTS = 2, 2
HUNG_S = 30.0
TTFT_S, TBT_S = 5.0, 0.2  # the innocent's objectives, as in tests/attacks
PACE_S = 0.01  # of steps, at most: a forward pass takes longer


@cache
def opened(folder: Path) -> Compiler:
    """A gateway's, once in its process."""
    raise_on_cpu_timer()
    return compiler_of(folder, VOCAB, (EOS,))


def checked(folder: Path, seed: str, number: int) -> Constraint | None:
    """In a gateway's process: the constraint of this number; None where it is refused."""
    compiler, (kind, text) = opened(folder), constraint(Random(f"{seed}/{number}"))
    if compiler.fault(kind, text):
        return None
    return Constraint(kind, text, (EOS,), compiler.proof, b"hostile-%d" % (number % TENANTS))


class Innocent:
    """Follows its schema, always with the first token that is allowed, and knows what that gives alone."""

    def __init__(self, grammars: Grammars, vocabulary: Vocabulary, masker: Masker) -> None:
        self._guide = lambda: grammars.guide(vocabulary, CONSTRAINT, lambda: None)
        self._masker = masker
        self._alone: list[int] = []
        self._begin()
        self._alone = [self._next([])[0] for _ in range(64)]
        self._begin()

    def _begin(self) -> None:
        self._state, self._at, self._begun = SamplerState(guide=self._guide()), 0, time.monotonic()

    def step(self, hostile: list[SamplerState], outcomes: Counter[str]) -> list[SamplerState]:
        """A token of each; those of the hostile ones that go on."""
        token, living = self._next(hostile)
        same = token == self._alone[self._at]
        outcomes["different"] += not same
        outcomes["late"] += time.monotonic() > self._begun + TTFT_S + self._at * TBT_S
        self._at += 1
        if not same or self._at == len(self._alone):
            self._begin()
        return living

    def _next(self, hostile: list[SamplerState]) -> tuple[int, list[SamplerState]]:
        masks = self._masker.masks([self._state, *hostile], VOCAB)
        assert masks is not None
        living = []
        for row, state in enumerate(hostile, 1):
            token = int(np.argmax(masks.allowed[row]))
            if row not in masks.refused and token != EOS:
                state.accept(token)
                living.append(state)
        if 0 in masks.refused:
            return -1, living
        token = int(np.argmax(masks.allowed[0]))
        self._state.accept(token)
        return token, living


@dataclass(slots=True)
class Followed:
    """A constraint that two sequences follow."""

    states: list[SamplerState]
    begun: float


class Engine:
    """The parts of an engine that follow constraints, with the innocent sequence."""

    def __init__(self, folder: Path) -> None:
        self.grammars, masker = Grammars(), Masker()
        self._vocabulary = Vocabulary(folder, VOCAB)
        self._innocent = Innocent(self.grammars, self._vocabulary, masker)
        self.open: list[Followed] = []
        self.outcomes: Counter[str] = Counter()
        self.slowest_s = 0.0

    def follow(self, hostile: Constraint) -> None:
        guides = [self.grammars.guide(self._vocabulary, hostile, lambda: None) for _ in range(2)]
        self.open.append(Followed([SamplerState(guide=guide) for guide in guides], time.monotonic()))

    def step(self) -> None:
        """Of all sequences whose grammars are compiled, and of the innocent one."""
        begun = time.monotonic()
        ready = [
            state
            for followed in self.open
            for state in followed.states
            if state.guide is not None and state.guide.ready
        ]
        living = self._innocent.step(ready, self.outcomes)
        over = [state for state in ready if state not in living or state.generated >= STEPS]
        for followed in self.open:
            followed.states = [state for state in followed.states if state not in over]
            if followed.states and begun - followed.begun > HUNG_S:
                self.outcomes["hung"] += 1
                followed.states = []
        self.open = [followed for followed in self.open if followed.states]
        took_s = time.monotonic() - begun
        self.slowest_s = max(self.slowest_s, took_s)
        time.sleep(max(PACE_S - took_s, 0.0))


class Sitting:
    """The constraints from the `first` on, until the `end` or the time is over."""

    def __init__(self, folder: Path, seed: str, first: int, end: int, seconds: float) -> None:
        self._folder, self._seed, self._end, self._until = folder, seed, end, time.monotonic() + seconds
        self._first = self._next = first
        self._engine = Engine(folder)
        self._checks: deque[Future[Constraint | None]] = deque()

    def run(self) -> dict[str, float]:
        """What became of them."""
        before = resident()
        with ProcessPoolExecutor(GATEWAYS, multiprocessing.get_context("spawn")) as gateways:
            while self._goes_on(gateways):
                self._engine.step()
        grown = (resident() - before) / (1 << 20)
        self._engine.grammars.stop()
        outcomes = dict.fromkeys(("refused", "followed", "different", "late", "hung"), 0) | self._engine.outcomes
        measured = {"slowest_ms": self._engine.slowest_s * 1e3, "grown_mib": grown}
        return {"count": self._next - self._first, **measured, **outcomes}

    def _goes_on(self, gateways: ProcessPoolExecutor) -> bool:
        """Have more checked, and what was taken followed, while there is room; False when all is over."""
        engine, checks = self._engine, self._checks
        while len(checks) < AT_ONCE and self._next < self._end and time.monotonic() < self._until:
            checks.append(gateways.submit(checked, self._folder, self._seed, self._next))
            self._next += 1
        while checks and checks[0].done() and len(engine.open) < AT_ONCE:
            hostile = checks.popleft().result()
            engine.outcomes["refused" if hostile is None else "followed"] += 1
            if hostile is not None:
                engine.follow(hostile)
        return bool(checks or engine.open)


def tell(seed: str, sittings: list[dict[str, float]], short: bool) -> bool:
    def total(name: str) -> float:
        return sum(one[name] for one in sittings)

    return report(
        "hostile_grammars",
        [
            Row(f"constraints of seed {seed}, {AT_ONCE} at a time", total("count"), "", COUNT),
            Row("of them followed, by two sequences each", total("followed"), ""),
            Row("innocent tokens that differ", total("different"), "", 0, "<="),
            Row(f"innocent tokens behind {TTFT_S:g} s and {TBT_S:g} s a token", total("late"), "", 0, "<="),
            Row("slowest step", max(one["slowest_ms"] for one in sittings), "ms"),
            Row(f"constraints that took longer than {HUNG_S:g} s", total("hung"), "", 0, "<="),
            Row("growth of the engine's process", max(one["grown_mib"] for one in sittings), "MiB", 64, "<="),
            Row("sittings, each with an engine of its own", len(sittings), ""),
        ],
        short,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_grammars")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", default=SEED)
    parser.add_argument("--journal", type=Path, help="a file that sittings are written to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this sitting")
    arguments = parser.parse_args()
    journal = Journal(arguments.journal)
    first = sum(int(one["count"]) for one in journal.records)
    if first < arguments.count:
        with tempfile.TemporaryDirectory() as folder:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as maker:
                maker.submit(save_model, Path(folder)).result()  # elsewhere: what it has used must hide no growth
            journal.add(Sitting(Path(folder), arguments.seed, first, arguments.count, arguments.seconds).run())
    if sum(int(one["count"]) for one in journal.records) < arguments.count:
        print(f"{journal.records[-1]}: to be gone on with")
        return 0
    return not tell(arguments.seed, journal.records, arguments.count < COUNT)


if __name__ == "__main__":
    sys.exit(main())
