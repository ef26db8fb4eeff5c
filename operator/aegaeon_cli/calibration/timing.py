"""Durations of calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def median_seconds(call: Callable[[], object], rounds: int) -> float:
    """The median of `rounds` calls after an uncounted first call, which allocates. With 0 rounds: the first call."""
    if rounds:
        call()
    taken = []
    for _ in range(rounds or 1):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken)
