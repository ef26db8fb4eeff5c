"""What statuses say of a scheduler while leaders change: for a few seconds, what was so a moment ago.

Engines attach to a new leader within seconds, and tell what their caches have. A pool that lost nothing by the change
is to say nothing of it; one that serves no more says so before it has claimed anything else for ten seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts

KEPT_S = 8.0


@dataclass(slots=True)
class Standing:
    """Of one pool. Times are of one clock, in seconds."""

    _facts: SchedulerFacts | None = None
    _heard: float = -math.inf

    @property
    def lasts(self) -> bool:
        """Something stands that may be over in a moment."""
        return self._facts is not None

    def of(self, facts: SchedulerFacts | None, now: float) -> SchedulerFacts | None:
        """The facts that stand; `facts`: of the leader that has answered just now, None: none has."""
        before = self._facts
        if before and now - self._heard < KEPT_S and (facts is None or _knows_less(facts, before)):
            return before
        self._facts, self._heard = facts, now
        return facts


def _knows_less(facts: SchedulerFacts, before: SchedulerFacts) -> bool:
    """A new leader to which no gateway has come back, or not all engines, or not all that they know of models."""
    if facts.incarnation == before.incarnation:
        return False
    suspects = len(facts.suspects) < len(before.suspects)
    gateways = before.gateways != frozenset() and facts.gateways == frozenset()
    return suspects or gateways or _attached(facts) < _attached(before) or _cached(facts) < _cached(before)


def _attached(facts: SchedulerFacts) -> int:
    return sum(one.attached for one in facts.engines)


def _cached(facts: SchedulerFacts) -> int:
    return sum(one.phase == "cached" for one in facts.models.values())
