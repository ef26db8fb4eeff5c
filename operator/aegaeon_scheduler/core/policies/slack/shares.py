"""Tiers and weights: the seconds by which a model's groups rank later, or earlier, than their deadlines.

A tier ranks `tier_share` of TTFT behind the one above: enough to be late first, and little enough that the tier above
does not run alone. Within a tier, weighted fair sharing applies where weights differ: a model that recently used more
of the engines' time than its weight allows ranks later, one that used less ranks earlier, by at most three fifths of
a tier. With equal tiers and weights the order does not change.
"""

from __future__ import annotations

from collections import defaultdict
from math import exp

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Tier
from aegaeon_scheduler.core.policies.slack.order import PREEMPT_SHARE, Standing
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Model

GREED_FREE = 5.0
"""times its part, which is what each model with requests would have, that are free: with three times, loads that all
fit are served worse"""
GREED_SHARE = 0.49
"""of TTFT, less than a tier: a model that holds many times its part of the engines ranks so much later, so that where
not all can be in time it is late before those that ask for little"""
_LATELY_S = 30.0  # seconds over which the engines' time is counted


class Shares:
    """Keeps the standing of the models that have groups. Seconds of turns are those that engines reported."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table) -> None:
        self._pool = pool
        self._table = table
        self._settings = settings
        self._spent: dict[ModelName, float] = {}  # seconds of the last `_LATELY_S` about
        self._seen: dict[ModelName, float] = {}
        self._at = 0.0
        self._weighted = False  # as of that catalog
        self._catalog = -1
        self._greedy: dict[Model, None] = {}

    def begin(self, model: Model) -> None:
        """A group of it begins."""
        self._greedy.pop(model, None)
        standing = self._table.standing(model)
        standing.tier_s, standing.weighed = self._table.tier_s(model), self._weighted
        standing.greed = self._greed(model)
        if standing.greed:
            self._greedy[model] = None
        greed_s = GREED_SHARE * model.config.slo.ttft_s * standing.greed
        self._put(model, standing, standing.tier_s + greed_s)

    def _greed(self, model: Model) -> float:
        """How far it holds more than some times the engines that each model with requests would have: below 1."""
        held = len(self._table.of(model))
        if held < 2 or self._weighted:
            return 0.0
        part = max(1.0, len(self._pool.fleet.of(model).open) / self._table.models)
        return max(0.0, 1.0 - GREED_FREE * part / held)

    def _put(self, model: Model, standing: Standing, behind: float) -> None:
        if standing.behind != behind:
            standing.behind = behind
            for group in self._table.of(model):
                group.refined()

    def update(self, now: float) -> None:
        """At each pass. Without weights that differ, only models with several groups need it, or all after a change."""
        if self._catalog == self._pool.catalog and not self._weighted:
            for model in {**self._greedy, **dict.fromkeys(self._table.split())}:
                if self._table.of(model):
                    self.begin(model)
                else:
                    self._greedy.pop(model, None)
            return
        if self._catalog != self._pool.catalog:
            self._catalog = self._pool.catalog
            self._table.drop_withdrawn()
        self._weighted = len({model.config.terms.weight for model in self._pool.models.values()}) > 1
        models = list({group.model.name: group.model for group in self._table.groups.values()}.values())
        if self._weighted:
            self._count(now)
            self._weigh(models)
        else:
            for model in models:
                self.begin(model)

    def _weigh(self, models: list[Model]) -> None:
        tiers: dict[Tier, list[Model]] = defaultdict(list)
        for model in models:
            tiers[model.config.terms.tier].append(model)
        for these in tiers.values():
            for model in these:
                standing = self._table.standing(model)
                standing.tier_s = self._table.tier_s(model)
                most_s = PREEMPT_SHARE * model.config.slo.ttft_s
                self._put(model, standing, standing.tier_s + self._excess(model, these) * most_s)

    def _count(self, now: float) -> None:
        fade = exp((self._at - now) / _LATELY_S)
        self._at = now
        spent = {}
        for name, model in self._pool.models.items():
            since_s = max(0.0, model.busy_s - self._seen.get(name, 0.0))  # a new model counts from 0
            spent[name] = self._spent.get(name, 0.0) * fade + since_s
        self._spent = spent
        self._seen = {name: model.busy_s for name, model in self._pool.models.items()}

    def _excess(self, model: Model, tier: list[Model]) -> float:
        """1 where it had twice its share or more, -1 where it had nothing."""
        spent = sum(self._spent.get(m.name, 0.0) for m in tier)  # a group may outlive its model until the pass
        share = spent * model.config.terms.weight / sum(m.config.terms.weight for m in tier)
        return min(self._spent.get(model.name, 0.0) / share, 2.0) - 1.0 if share > 0.0 else 0.0
