"""Keeps a scheduler's facts for a few seconds during a change of leader.

Engines attach to the new leader within seconds and report their caches. A change without loss does not show in the
status; a pool that no longer serves shows it within ten seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts

KEPT_S = 8.0


@dataclass(slots=True)
class RetainedFacts:
    """The last complete facts of one pool. Times are seconds of one clock."""

    _facts: SchedulerFacts | None = None
    _received: float = -math.inf

    @property
    def lasts(self) -> bool:
        """True while facts are kept, which may soon be outdated."""
        return self._facts is not None

    def of(self, facts: SchedulerFacts | None, now: float) -> SchedulerFacts | None:
        """Return the facts to report. `facts`: of the leader that just answered; None: no leader answered."""
        before = self._facts
        if before and now - self._received < KEPT_S and (facts is None or _knows_less(facts, before)):
            return before
        self._facts, self._received = facts, now
        return facts


def _knows_less(facts: SchedulerFacts, before: SchedulerFacts) -> bool:
    """Return whether a new leader lacks gateways, engines or models' caches that the former leader knew."""
    if facts.incarnation == before.incarnation:
        return False
    suspects = len(facts.suspects) < len(before.suspects)
    gateways = before.gateways != frozenset() and facts.gateways == frozenset()
    return suspects or gateways or _attached(facts) < _attached(before) or _cached(facts) < _cached(before)


def _attached(facts: SchedulerFacts) -> int:
    return sum(engine.attached for engine in facts.engines)


def _cached(facts: SchedulerFacts) -> int:
    return sum(model.phase == "cached" for model in facts.models.values())
