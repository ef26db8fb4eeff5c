"""Scales of slack, by model: less where much is promised, the more time a model has.

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
    """Seconds up to which slack counts as it is, what each second beyond counts for, and how much later than now a
    group ranks that is late: as much as one with the loosest objective and that slack."""

    even_s: float
    factor: float
    late_s: float

    def rank_s(self, slack_s: float) -> float:
        """Seconds by which a group with this slack ranks later than now: no more than it has."""
        beyond_s = slack_s - self.even_s
        return slack_s if beyond_s <= 0.0 else self.even_s + beyond_s * self.factor


ALIKE = Scale(0.0, 1.0, 0.0)
"""where all models with work have the same TTFT: the time itself is the rank"""


class Objectives:
    """TTFT of the models that have groups: the shortest and the longest, seconds."""

    def __init__(self, settings: SlackSettings) -> None:
        self._settings = settings
        self._of: dict[Model, float] = {}
        self._count: Counter[float] = Counter()
        self._revised = False
        self.least_s = self.most_s = _LEAST_S

    def add(self, model: Model) -> None:
        """Counts a model that has its first group."""
        self._of[model] = ttft_s = max(model.config.slo.ttft_s, _LEAST_S)
        self._count[ttft_s] += 1

    def drop(self, model: Model) -> None:
        """Drops a model that has no group any more."""
        ttft_s = self._of.pop(model)
        self._count[ttft_s] -= 1
        if not self._count[ttft_s]:
            del self._count[ttft_s]

    def revise(self, model: Model) -> None:
        """Revises a model that may have another TTFT."""
        if model in self._of:
            self.drop(model)
            self.add(model)
            self._revised = True

    def changed(self) -> bool:
        """Returns whether the scales have changed."""
        before = self.least_s, self.most_s
        if self._count:
            self.least_s, self.most_s = min(self._count), max(self._count)
        revised, self._revised = self._revised, False
        return revised or before != (self.least_s, self.most_s)

    def scale(self, model: Model) -> Scale:
        """Returns the scale of a model's slack."""
        if self.most_s <= self.least_s:
            return ALIKE
        even_s = self._settings.even_share * self.least_s
        loosest = Scale(even_s, self._factor(self.most_s), 0.0)
        return Scale(even_s, self._factor(model.config.slo.ttft_s), loosest.rank_s(self._settings.late_slack_s))

    def _factor(self, ttft_s: float) -> float:
        return float((self.least_s / max(ttft_s, self.least_s)) ** self._settings.relative_power)
