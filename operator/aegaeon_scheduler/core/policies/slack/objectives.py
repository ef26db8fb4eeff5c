"""What slack counts for, by model: less where much is promised, the more time a model has.

Ranked by due times, a group with a short TTFT comes before one with a long TTFT until it is as far ahead of its reader
as the other is from being due: it runs alone and at once, and the others come late. By slack relative to TTFT both wait
for the same part of what was promised.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.state import Model

_LEAST_S = 1e-3  # no objective counts as shorter: its slack would be all that counts


@dataclass(frozen=True, slots=True)
class Scale:
    """Seconds up to which slack counts as it is, and what each second beyond counts for."""

    even_s: float
    factor: float

    def rank_s(self, slack_s: float) -> float:
        """Seconds by which a group with this slack ranks later than now: no more than it has."""
        beyond_s = slack_s - self.even_s
        return slack_s if beyond_s <= 0.0 else self.even_s + beyond_s * self.factor


ALIKE = Scale(0.0, 1.0)
"""of a model with the shortest TTFT"""


class Objectives:
    """TTFT of the models that have groups; `least_s` is the shortest."""

    def __init__(self, settings: SlackSettings) -> None:
        self._settings = settings
        self._of: dict[Model, float] = {}
        self._count: Counter[float] = Counter()
        self.least_s = _LEAST_S

    def add(self, model: Model) -> None:
        """It has its first group."""
        self._of[model] = ttft_s = max(model.config.slo.ttft_s, _LEAST_S)
        self._count[ttft_s] += 1

    def drop(self, model: Model) -> None:
        """It has no group any more."""
        ttft_s = self._of.pop(model)
        self._count[ttft_s] -= 1
        if not self._count[ttft_s]:
            del self._count[ttft_s]

    def changed(self) -> bool:
        """Whether `least_s` is another now."""
        before, self.least_s = self.least_s, min(self._count, default=self.least_s)
        return self.least_s != before

    def scale(self, model: Model) -> Scale:
        """Of its slack."""
        ttft_s = model.config.slo.ttft_s
        if ttft_s <= self.least_s:
            return ALIKE
        factor = float((self.least_s / ttft_s) ** self._settings.relative_power)
        return Scale(self._settings.even_share * self.least_s, factor)
