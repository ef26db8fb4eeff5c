"""Seconds of prefills, decode steps and loads (Eq. 4-6 of the paper, a batch term, a floor), per (model, device).

Coefficients are configured or default, and refined from reports by recursive least squares; each fit has its R^2.
"""

from __future__ import annotations

from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import ModelName

_FORGET = 0.998  # weight of a report after one more: about 500 reports count
_PRIOR = 10.0  # variance of the given constants against one report, in units of the scaled coefficients
_RATE = 0.2  # weight of the newest copy in the mean rate of a link
_TRACE_MAX = 1e4  # stops the covariance from growing while the batch never changes


class Fit:
    """Recursive least squares of y = w . x for three features, pure Python; `r2` over the same weights."""

    __slots__ = ("count", "mean", "p", "residual", "total", "w", "weight")

    def __init__(self, w: tuple[float, float, float]) -> None:
        self.w = list(w)
        self.p = [_PRIOR, 0.0, 0.0, _PRIOR, 0.0, _PRIOR]  # upper triangle
        self.count = 0
        self.weight = self.mean = self.residual = self.total = 0.0

    def predict(self, x1: float, x2: float) -> float:
        """Seconds for the features (1, x1, x2)."""
        w = self.w
        return w[0] + w[1] * x1 + w[2] * x2

    def update(self, x1: float, x2: float, y: float) -> None:
        """Learn from one measurement."""
        p00, p01, p02, p11, p12, p22 = self.p
        g0 = p00 + p01 * x1 + p02 * x2
        g1 = p01 + p11 * x1 + p12 * x2
        g2 = p02 + p12 * x1 + p22 * x2
        denominator = _FORGET + g0 + g1 * x1 + g2 * x2
        error = y - self.predict(x1, x2)
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


class Estimate:
    """One model on one device. Tokens in, seconds out. Features are scaled to about one."""

    __slots__ = ("_constants", "_copies", "_kv_s_per_byte", "_load_s_per_byte", "_loads", "_prefill", "_step")

    def __init__(self, constants: LatencyConstants) -> None:
        k = constants
        self._constants = k
        self._step = Fit((k.a, k.b * 1e4, k.c * 1e1))
        self._prefill = Fit((k.p0, k.p1 * 1e3, k.p2 * 1e6))
        self._load_s_per_byte = 1.0 / k.load_bytes_per_s
        self._kv_s_per_byte = 1.0 / k.kv_bytes_per_s
        self._loads = self._copies = 0

    def step_s(self, context_tokens: int, batch: int) -> float:
        """One decode step of a batch (Eq. 6 with a batch term)."""
        w = self._step.w  # `predict` in place: a pass over a full pool asks a thousand times
        seconds = w[0] + w[1] * (context_tokens * 1e-4) + w[2] * (batch * 1e-1)
        return seconds if seconds > 1e-6 else 1e-6

    def prefill_s(self, tokens: int) -> float:
        """One prompt (Eq. 5 with a floor)."""
        x = tokens * 1e-3
        floor = self._constants.floor if self._prefill.count == 0 else 1e-6
        return max(floor, self._prefill.predict(x, x * x))

    def load_s(self, nbytes: int) -> float:
        """Weights from the host cache (Eq. 4)."""
        return nbytes * self._load_s_per_byte

    def kv_s(self, nbytes: int) -> float:
        """KV blocks between device and host tier."""
        return nbytes * self._kv_s_per_byte

    def saw_steps(self, context_tokens: int, batch: int, seconds: float) -> None:
        """A decode step of this size took so long (mean of a few)."""
        self._step.update(context_tokens * 1e-4, batch * 1e-1, seconds)

    def saw_prefill(self, tokens: int, seconds: float) -> None:
        """A prefill of so many tokens took so long."""
        x = tokens * 1e-3
        self._prefill.update(x, x * x, seconds)

    def saw_load(self, nbytes: int, seconds: float) -> None:
        """A load moved so many bytes."""
        if seconds > 0 and nbytes > 0:
            self._loads += 1
            self._load_s_per_byte += max(_RATE, 1.0 / self._loads) * (seconds / nbytes - self._load_s_per_byte)

    def saw_kv(self, nbytes: int, seconds: float) -> None:
        """A KV copy moved so many bytes."""
        if seconds > 0 and nbytes > 0:
            self._copies += 1
            self._kv_s_per_byte += max(_RATE, 1.0 / self._copies) * (seconds / nbytes - self._kv_s_per_byte)

    def constants(self) -> LatencyConstants:
        """The constants as refined so far."""
        s, p = self._step.w, self._prefill.w
        floor = self._constants.floor
        return LatencyConstants(
            s[0],
            s[1] * 1e-4,
            s[2] * 1e-1,
            p[0],
            p[1] * 1e-3,
            p[2] * 1e-6,
            floor,
            1.0 / self._load_s_per_byte,
            1.0 / self._kv_s_per_byte,
        )

    def quality(self) -> tuple[float, float]:
        """R^2 of the step fit and of the prefill fit."""
        return self._step.r2, self._prefill.r2


class Estimates:
    """All estimates, made on first use from the constants that fit best: model and device, model, device, default."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._default = config.latency
        self._given = {(c.model, c.device): c.constants for c in config.constants}
        self._table: dict[tuple[str, str], Estimate] = {}

    def of(self, model: ModelName, device: str) -> Estimate:
        """The estimate of this pair."""
        key = (model, device)
        found = self._table.get(key)
        if found is None:
            found = self._table[key] = Estimate(self._constants(model, device))
        return found

    def _constants(self, model: str, device: str) -> LatencyConstants:
        for key in ((model, device), (model, ""), ("", device)):
            if key in self._given:
                return self._given[key]
        return self._default

    def items(self) -> list[tuple[tuple[str, str], Estimate]]:
        """Every pair that was used, in order of first use."""
        return list(self._table.items())
