"""The point at which a curve of attainment over load falls below its target: the figure that policies are compared
by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

TARGET = 0.9


def crossing(points: Sequence[tuple[float, float]], target: float = TARGET) -> float | None:
    """The largest load before attainment first drops below the target, between two points on a straight line.

    `points` are (load, attainment 0..1) in order of load. None when it never drops; the first load when it always does.
    """
    before: tuple[float, float] | None = None
    for x, share in points:
        if share < target:
            if before is None:
                return x
            return before[0] + (before[1] - target) / (before[1] - share) * (x - before[0])
        before = (x, share)
    return None


def sweep(loads: Iterable[int], attained: Callable[[int], float], beyond: int = 1) -> list[tuple[float, float]]:
    """Attainment at each load in order, up to `beyond` points below the target."""
    points: list[tuple[float, float]] = []
    for load in loads:
        points.append((float(load), attained(load)))
        if sum(share < TARGET for _, share in points) >= beyond:
            break
    return points
