"""Compares our policy with the best baseline at each point's load, in each form of attainment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from aegaeon_simulator.figures.book import Book
from aegaeon_simulator.figures.catalog import BASELINES, FORMS, OURS

BEHIND = 0.005  # of attainment: nearer is the same
_FIGURES = ("11", "12", "13", "17", "shapes")


@dataclass(frozen=True, slots=True)
class Point:
    """Shares in 0..1. `by`: the best baseline, at a load that it was run at or on the line between two of its loads.

    Where the curve of a baseline had ended (all forms below 75 %), its last point stands for what follows:
    more load does not make it better.
    """

    panel: str
    load: float
    form: str
    ours: float
    best: float
    by: str

    @property
    def behind(self) -> bool:
        """True when ours is lower by more than half a point."""
        return self.ours < self.best - BEHIND


def points(book: Book) -> list[Point]:
    """Every comparison."""
    return list(_points(book))


def _points(book: Book) -> Iterator[Point]:
    for name, panel in book.panels.items():
        if panel["figure"] in _FIGURES:
            for load, ours in ((row["load"], row["attainment"]) for row in book.rows(name, OURS)):
                for form in FORMS:
                    lines = ((book.line(name, policy, form), policy) for policy in BASELINES)
                    best = max(((_at(line, load), policy) for line, policy in lines if line), default=None)
                    if best is not None:
                        yield Point(name, load, form, ours[form], *best)


def _at(line: list[tuple[float, float]], load: float) -> float:
    """The value at this load, on straight lines; that of the nearest end outside."""
    before = line[0]
    for point in line:
        if point[0] >= load:
            span = point[0] - before[0]
            return point[1] if span <= 0 else before[1] + (point[1] - before[1]) * (load - before[0]) / span
        before = point
    return before[1]


def report(book: Book) -> dict[str, Any]:
    """The number of comparisons, and those in which ours is behind, as JSON values."""
    comparisons = points(book)
    return {
        "comparisons": len(comparisons),
        "behind": [asdict(p) for p in comparisons if p.behind],
        "by_more_than": BEHIND,
    }


def sentence(book: Book) -> str:
    """A summary for people."""
    comparisons = points(book)
    behind = sum(p.behind for p in comparisons)
    return f"{OURS} beside the best baseline: {len(comparisons)} comparisons, in {behind} more than half a point below"
