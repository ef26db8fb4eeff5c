"""What `benchmarks.truth` compares: policies on one engine each, a pool of four with and without a GPU's pace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_simulator.settings import Split

PACED = Path(__file__).parent / "paced"


@dataclass(frozen=True, slots=True)
class Case:
    """A policy on so many engines, with so many models for each of the four that are made. `rate`: requests a second of
    each model; `points`: of attainment, allowed; `own_pace`: steps are as short as the tiny models'."""

    policy: str
    engines: int = 1
    copies: int = 1
    rate: float = 0.6
    points: float = 5.0
    own_pace: bool = False

    @property
    def name(self) -> str:
        """For people and results."""
        many = f", {self.engines} engines, {4 * self.copies} models" if self.engines > 1 else ""
        return f"{self.policy}{many}{', own pace' if self.own_pace else ''}"

    @property
    def split(self) -> Split:
        """One prefill and one decode engine for `paper`."""
        return Split(prefill=1, decode=1) if self.policy == "paper" else Split(unified=self.engines)


CASES = {
    "paper": Case("paper"),
    "slack": Case("slack"),
    "pool": Case("slack", engines=4, copies=3, points=3.0),
    "unpaced": Case("slack", engines=4, copies=3, points=3.0, own_pace=True),
}


@contextmanager
def pace(case: Case) -> Iterator[None]:
    """What Python processes started meanwhile take for steps and loads."""
    before = os.environ.get("PYTHONPATH", "")
    if not case.own_pace:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(PACED), *filter(None, [before])])
    try:
        yield
    finally:
        os.environ["PYTHONPATH"] = before
