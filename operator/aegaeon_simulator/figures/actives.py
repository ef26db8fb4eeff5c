"""Figure 4: how many of M models are active at once when every request of one takes the same time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MODELS, RATE, SERVICE_S, SPAN_S = 100, 0.037, 16.79, 3600.0


def expected_active(models: int, rate: float, service_s: float) -> float:
    """Theorem 3.1: E[m] = M (1 - exp(-lambda T))."""
    return models * (1 - math.exp(-rate * service_s))


def figure_4(seed: int = 0) -> dict[str, Any]:
    """The count of active models each second of an hour, its mean, and what the formula says."""
    counts = active_counts(MODELS, RATE, SERVICE_S, SPAN_S, seed)
    return {
        "models": MODELS,
        "rate": RATE,
        "service_s": SERVICE_S,
        "expected": expected_active(MODELS, RATE, SERVICE_S),
        "mean": float(counts.mean()),
        "counts": [int(c) for c in counts],
    }


def active_counts(models: int, rate: float, service_s: float, span_s: float, seed: int) -> np.ndarray[Any, Any]:
    """Active models at each whole second; every model has begun long before the first one."""
    random = np.random.default_rng(seed)
    at = np.arange(0.0, span_s)
    counts = np.zeros(len(at), dtype=int)
    for _ in range(models):
        count = random.poisson(rate * (span_s + service_s))
        arrivals = np.sort(random.uniform(-service_s, span_s, count))
        counts += np.searchsorted(arrivals, at, "right") > np.searchsorted(arrivals, at - service_s, "right")
    return counts
