"""The fewest devices that suffice, where more never hurt: doubling or halving from a guess, then bisection."""

from __future__ import annotations

from collections.abc import Callable


def fewest(suffice: Callable[[int], bool], low: int, high: int, guess: int) -> int | None:
    """The smallest count in low..high that suffices, None when none does. Asks about as often as the logarithm of the
    distance between guess and answer."""
    at, step = min(high, max(low, guess)), 1
    if suffice(at):
        good = at
        while good > low and suffice(max(low, good - step)):
            good = max(low, good - step)
            step *= 2
        bad = max(low - 1, good - step)
        return _between(suffice, bad, good)
    bad = at
    while bad < high:
        at = min(high, bad + step)
        if suffice(at):
            return _between(suffice, bad, at)
        bad, step = at, step * 2
    return None


def _between(suffice: Callable[[int], bool], bad: int, good: int) -> int:
    """`bad` does not suffice (or is below all), `good` does."""
    while good - bad > 1:
        middle = (good + bad) // 2
        if suffice(middle):
            good = middle
        else:
            bad = middle
    return good
