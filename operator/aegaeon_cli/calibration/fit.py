"""Least squares of measured seconds. Errors are relative to the measured seconds, so that short steps count too.

No coefficient is negative: more tokens never take less time, and a negative one misleads beyond the measured range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients in the order of the columns, and how good they are over the measurements."""

    coefficients: tuple[float, ...]
    r2: float
    mean_error: float  # mean of |predicted - measured| / measured


def fit_step(points: Sequence[tuple[int, int, float]]) -> Fit:
    """(context tokens of the batch, batch, seconds) -> a + b * context + c * batch (Eq. 6 with a batch term)."""
    context, batch, seconds = np.array(points, dtype=np.float64).T
    return _fit(np.stack([np.ones_like(context), context, batch], axis=1), seconds)


def fit_prefill(points: Sequence[tuple[int, float]]) -> Fit:
    """(tokens of the prompt, seconds) -> p0 + p1 * tokens + p2 * tokens^2 (Eq. 5)."""
    tokens, seconds = np.array(points, dtype=np.float64).T
    return _fit(np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1), seconds)


def fit_copy(points: Sequence[tuple[int, float]]) -> Fit:
    """(bytes, seconds) -> seconds per byte (Eq. 4, whose factor beta is in the rate)."""
    nbytes, seconds = np.array(points, dtype=np.float64).T
    return _fit(nbytes[:, None], seconds)


def _fit(columns: NDArray[np.float64], seconds: NDArray[np.float64]) -> Fit:
    coefficients = _non_negative(columns / seconds[:, None], np.ones_like(seconds))
    predicted = columns @ coefficients
    spread = float(((seconds - seconds.mean()) ** 2).sum())
    missed = float(((seconds - predicted) ** 2).sum())
    return Fit(
        coefficients=tuple(float(c) for c in coefficients),
        r2=1.0 - missed / spread if spread > 0 else 0.0,
        mean_error=float((np.abs(predicted - seconds) / seconds).mean()),
    )


def _non_negative(columns: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solve least squares; drops the column with the most negative coefficient until none is negative."""
    scale = np.abs(columns).max(axis=0)
    used = list(range(columns.shape[1]))
    while True:
        solution = np.linalg.lstsq(columns[:, used] / scale[used], target, rcond=None)[0]
        if solution.min() >= 0 or len(used) == 1:
            break
        used.pop(int(solution.argmin()))
    coefficients = np.zeros(columns.shape[1])
    coefficients[used] = np.maximum(solution, 0.0) / scale[used]
    return coefficients
