"""Seconds learned from reports that are not to be trusted one by one: a graph is captured, a host swaps, a clock jumps.

An outlier changes nothing; what lasts for three reports is believed.
"""

from __future__ import annotations

from collections import deque

_FORGET = 0.998  # weight of a report after one more: about 500 reports count
_PRIOR = 10.0  # variance of the given constants against one report, in units of the scaled coefficients
_TRACE_MAX = 1e4  # stops the covariance from growing while the batch never changes
_RECENT = 5  # reports among which the usual one is looked for
_OUTLIER = 3.0  # times as much, or as little, as the usual one


class Usual:
    """The median of the latest values."""

    __slots__ = ("_latest",)

    def __init__(self, *assumed: float) -> None:
        self._latest = deque(assumed, maxlen=_RECENT)

    def saw(self, value: float) -> float:
        """One more; returns the median with it."""
        self._latest.append(value)
        return sorted(self._latest)[len(self._latest) // 2]


class Fit:
    """Recursive least squares of y = w . x for three features, pure Python; `r2` over the same weights.

    Reports that take many times longer, or shorter, than predicted are left out, unless
    most of the latest do: then the prediction is wrong.
    """

    __slots__ = ("_ratios", "count", "mean", "p", "residual", "total", "w", "weight")

    def __init__(self, w: tuple[float, float, float]) -> None:
        self.w = list(w)
        self.p = [_PRIOR, 0.0, 0.0, _PRIOR, 0.0, _PRIOR]  # upper triangle
        self.count = 0
        self.weight = self.mean = self.residual = self.total = 0.0
        self._ratios = Usual(1.0, 1.0)

    def predict(self, x0: float, x1: float, x2: float) -> float:
        """Seconds for these features."""
        w = self.w
        return w[0] * x0 + w[1] * x1 + w[2] * x2

    def update(self, x0: float, x1: float, x2: float, y: float) -> None:
        """Learn from one measurement, unless it is an outlier."""
        ratio = y / max(self.predict(x0, x1, x2), 1e-9)
        usual = self._ratios.saw(ratio)
        if usual / _OUTLIER <= ratio <= usual * _OUTLIER:
            self._learn(x0, x1, x2, y)

    def _learn(self, x0: float, x1: float, x2: float, y: float) -> None:
        p00, p01, p02, p11, p12, p22 = self.p
        g0 = p00 * x0 + p01 * x1 + p02 * x2
        g1 = p01 * x0 + p11 * x1 + p12 * x2
        g2 = p02 * x0 + p12 * x1 + p22 * x2
        denominator = _FORGET + g0 * x0 + g1 * x1 + g2 * x2
        error = y - self.predict(x0, x1, x2)
        step = error / denominator
        w = self.w
        w[0] += g0 * step
        w[1] += g1 * step
        w[2] += g2 * step
        scale = 1.0 / _FORGET if p00 + p11 + p22 < _TRACE_MAX else 1.0
        inverse = 1.0 / denominator
        self.p = [
            (p00 - g0 * g0 * inverse) * scale,
            (p01 - g0 * g1 * inverse) * scale,
            (p02 - g0 * g2 * inverse) * scale,
            (p11 - g1 * g1 * inverse) * scale,
            (p12 - g1 * g2 * inverse) * scale,
            (p22 - g2 * g2 * inverse) * scale,
        ]
        self._score(y, error)

    def _score(self, y: float, error: float) -> None:
        self.count += 1
        self.weight = self.weight * _FORGET + 1.0
        delta = y - self.mean
        self.mean += delta / self.weight
        self.total = self.total * _FORGET + delta * (y - self.mean)
        self.residual = self.residual * _FORGET + error * error

    @property
    def r2(self) -> float:
        """Share of the variance that one-step-ahead predictions explain; 0 before there is any."""
        return max(0.0, 1.0 - self.residual / self.total) if self.total > 0 else 0.0
