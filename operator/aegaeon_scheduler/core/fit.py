"""Seconds learned from reports that are not to be trusted one by one: a host swaps, a clock jumps, a graph is captured.

An outlier changes nothing; what most of the latest reports say is believed.
"""

from __future__ import annotations

from collections import deque
from operator import mul
from typing import NamedTuple

Triple = tuple[float, float, float]
Covariance = tuple[float, float, float, float, float, float]

_FORGET = 0.998  # weight of a report after one more: about 500 reports count
_TRACE_MAX = 1e4  # stops the covariance from growing while the batch never changes
_RECENT = 5  # reports of which most must be far off before any of these is believed
_MOST = 3
_FAR = 3.0  # times as long, or as short, as predicted
_OFF = 1.1  # times as long, or as short, so many times in a row: the device is another one than it was
_RUN = 5
_SETTLED = 25  # reports between two doubts: a fit whose shape is wrong is a little off wherever sizes are alike
_LEAST_S = 1e-6  # what a fit that is wrong predicts at least


class Usual:
    """The median of the latest values."""

    __slots__ = ("_latest", "median")

    def __init__(self) -> None:
        self._latest = deque[float](maxlen=_RECENT)
        self.median = 0.0

    def saw(self, value: float) -> float:
        """One more; returns the median with it, of two the lesser."""
        self._latest.append(value)
        self.median = sorted(self._latest)[(len(self._latest) - 1) // 2]
        return self.median


class _Sample(NamedTuple):
    """Three features and what was measured."""

    x: Triple
    y: float


class Fit:
    """Recursive least squares of y = w . x for three features, beginning with coefficients that are given; `r2` of what
    it predicts one step ahead.

    Coefficients are multiples of the given ones and errors are shares of what those predict, so neither units nor sizes
    matter. `prior`: how unsure the given multiples are, that is their covariance, in units of the variance of one
    report; the upper triangle of a matrix.

    A report that is far off waits until most of the latest are; then those of them that agree are learned from, and
    what was learned before counts for little. So it does when reports in a row are a little off to the same side.
    """

    __slots__ = (
        "_far", "_first", "_learned", "_prior", "_run", "_scale", "_theta",
        "count", "mean", "p", "residual", "total", "w", "weight",
    )  # fmt: skip

    def __init__(self, w: Triple, scale: Triple, prior: Covariance) -> None:
        """`scale`: of each coefficient, where it is given as zero."""
        s0, s1, s2 = (weight or usual for weight, usual in zip(w, scale, strict=True))
        self._scale = s0, s1, s2
        self._first = [1.0 if weight else 0.0 for weight in w]
        self._theta = list(self._first)
        self.w = list(w)
        self.p = self._prior = prior
        self.count = 0
        self.weight = self.mean = self.residual = self.total = 0.0
        self._far = deque[_Sample | None](maxlen=_RECENT)
        self._learned = _SETTLED  # reports since there was doubt
        self._run = 0  # reports in a row that took longer, or, below zero, shorter than predicted

    def predict(self, x0: float, x1: float, x2: float) -> float:
        """Seconds for these features."""
        w = self.w
        return w[0] * x0 + w[1] * x1 + w[2] * x2

    def update(self, x0: float, x1: float, x2: float, y: float) -> None:
        """Learn from one measurement, unless it is an outlier."""
        ratio = y / max(self.predict(x0, x1, x2), _LEAST_S)
        if _FAR > ratio > 1.0 / _FAR:
            self._far.append(None)
            self._learn(x0, x1, x2, y)
            self._watch(ratio)
        else:
            self._far.append(_Sample((x0, x1, x2), y))
            self._believe([sample for sample in self._far if sample is not None])

    def _watch(self, ratio: float) -> None:
        side = 1 if ratio > _OFF else -1 if ratio * _OFF < 1.0 else 0
        self._run = self._run + side if side * self._run > 0 else side
        self._learned += 1
        if abs(self._run) >= _RUN and self._learned >= _SETTLED:
            self._doubt()

    def _believe(self, far: list[_Sample]) -> None:
        """Learn from most of these, if they are enough: from what is known, or from what was given if that is likelier
        to have the right shape."""
        if len(far) < _MOST:
            return
        configured, known = self._ratios(far, self._first), self._ratios(far, self._theta)
        if max(configured) * min(known) < max(known) * min(configured):
            self._theta, known = list(self._first), configured
        self._doubt()
        usual = sorted(known)[len(far) // 2]
        for sample, ratio in zip(far, known, strict=True):
            if usual / _FAR < ratio < usual * _FAR:
                self._learn(*sample.x, sample.y)

    def _ratios(self, samples: list[_Sample], theta: list[float]) -> list[float]:
        """Measured seconds over those predicted with these multiples."""
        w = [multiple * scale for multiple, scale in zip(theta, self._scale, strict=True)]
        return [y / max(sum(map(mul, w, x)), _LEAST_S) for x, y in samples]

    def _doubt(self) -> None:
        """Learn from the next reports as quickly as at the start."""
        self._far.clear()
        self._run = self._learned = 0
        self.p = self._prior

    def _learn(self, x0: float, x1: float, x2: float, y: float) -> None:
        s0, s1, s2 = self._scale
        f0, f1, f2 = s0 * x0, s1 * x1, s2 * x2
        unit = 1.0 / (f0 + f1 + f2)
        f0, f1, f2 = f0 * unit, f1 * unit, f2 * unit
        p00, p01, p02, p11, p12, p22 = self.p
        g0 = p00 * f0 + p01 * f1 + p02 * f2
        g1 = p01 * f0 + p11 * f1 + p12 * f2
        g2 = p02 * f0 + p12 * f1 + p22 * f2
        inverse = 1.0 / (_FORGET + g0 * f0 + g1 * f1 + g2 * f2)
        theta = self._theta
        error = y - (s0 * theta[0] * x0 + s1 * theta[1] * x1 + s2 * theta[2] * x2)
        step = error * unit * inverse
        theta[0] += g0 * step
        theta[1] += g1 * step
        theta[2] += g2 * step
        self.w = [s0 * theta[0], s1 * theta[1], s2 * theta[2]]
        scale = 1.0 / _FORGET if p00 + p11 + p22 < _TRACE_MAX else 1.0
        self.p = (
            (p00 - g0 * g0 * inverse) * scale,
            (p01 - g0 * g1 * inverse) * scale,
            (p02 - g0 * g2 * inverse) * scale,
            (p11 - g1 * g1 * inverse) * scale,
            (p12 - g1 * g2 * inverse) * scale,
            (p22 - g2 * g2 * inverse) * scale,
        )
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
