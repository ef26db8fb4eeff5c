"""How long a call takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median


def median_seconds(call: Callable[[], object], rounds: int) -> float:
    """Of `rounds` calls; one before them is not counted, as the first one allocates."""
    call()
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken)
