"""How long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def median_seconds(call: Callable[[], object], rounds: int) -> float:
    """Of `rounds` calls; one before them is not counted, as the first one allocates. Of 0: the first one's."""
    if rounds:
        call()
    taken = []
    for _ in range(rounds or 1):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken)
