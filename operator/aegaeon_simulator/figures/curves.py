"""A curve: one policy over a panel's loads. It requests the next loads to run until its 90 % crossing is found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from aegaeon_simulator.figures.catalog import FORMS, OURS, Panel
from aegaeon_simulator.figures.points import Point
from aegaeon_simulator.results.attainment_curve import TARGET

_REFINEMENTS = 1  # loads put between those of the panel, at most
_NEAR = 0.006  # of the target: the crossing is known
_LOST = 0.75  # a baseline that is below in all forms is run no further: ours is not that low where it is compared
_NARROW = 0.04  # of the load: the bracket is narrow enough

Result = dict[str, Any]


@dataclass
class Curve:
    """Results by load and seed, as far as they are known."""

    panel: Panel
    policy: str
    seeds: range
    results: dict[float, list[Result]] = field(default_factory=dict)

    def next_load(self) -> float | None:
        """The next load to run; None when the curve is finished."""
        for load in self.panel.loads:
            if load not in self.results:
                return load
            if self.panel.refine and all(self.share(load, form) < self._end for form in FORMS):
                break
        return self._refinement() if self.panel.refine else None

    @property
    def _end(self) -> float:
        return TARGET if self.policy == OURS else _LOST

    def points(self, load: float) -> list[Point]:
        """The runs of one load, one for each seed."""
        return [self.panel.point(self.policy, load, seed) for seed in self.seeds]

    def share(self, load: float, form: str) -> float:
        """Attainment, mean over seeds; without requests it is 1."""
        shares = [r["attainment"][form] for r in self.results[load] if r["attainment"]]
        return sum(shares) / len(shares) if shares else 1.0

    def line(self, form: str) -> list[tuple[float, float]]:
        """(load, attainment) in order of load."""
        return [(load, self.share(load, form)) for load in sorted(self.results)]

    def _refinement(self) -> float | None:
        """Between two loads, where the tokens on time are estimated to be the target."""
        added = [load for load in self.results if load not in self.panel.loads]
        bracket = _bracket(self.line("token"))
        if bracket is None or len(added) >= _REFINEMENTS:
            return None
        (low, above), (high, below) = bracket
        if high - low <= _NARROW * high or min(above - TARGET, TARGET - below) < _NEAR:
            return None
        at = low + (high - low) * min(0.8, max(0.2, (above - TARGET) / (above - below)))
        at = float(round(at)) if self.panel.axis == "models" else round(at, 3)
        return None if at in self.results else at


def _bracket(line: Iterable[tuple[float, float]]) -> tuple[tuple[float, float], tuple[float, float]] | None:
    before = None
    for point in line:
        if point[1] < TARGET:
            return None if before is None else (before, point)
        before = point
    return None
