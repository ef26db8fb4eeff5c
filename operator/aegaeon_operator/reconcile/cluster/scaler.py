"""The autoscaler of one pool: what there is and how the scheduler says it fares, to engines by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.autoscale import Load, Memory, step
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts
from aegaeon_operator.spec.resources import GpuPoolSpec


@dataclass(slots=True)
class Scaler:
    """Remembers, for each role, since when it has been full or idle."""

    memories: dict[str, Memory] = field(default_factory=dict)

    def step(
        self, spec: GpuPoolSpec, there: Mapping[str, int], facts: SchedulerFacts | None, now: float
    ) -> dict[str, int]:
        """Engines by role, for roles with min and max. `there`: how many were asked for last; left out: never any."""
        wanted = {}
        for role, asked in spec.roles.items():
            if asked.min is None or asked.max is None:
                continue
            count = there.get(role, asked.replicas)
            if facts is None:
                wanted[role] = min(max(count, asked.min), asked.max)
                continue
            memory = self.memories.get(role, Memory())
            load = _load(role, count, facts)
            wanted[role], self.memories[role] = step(load, asked.min, asked.max, spec.autoscaling, memory, now)
        return wanted


def _load(role: str, asked: int, facts: SchedulerFacts) -> Load:
    mine = [one for one in facts.engines if one.role == role and one.attached]
    return Load(
        asked=asked,
        attached=len(mine),
        oldest_wait_s=facts.oldest_wait_s,
        kv_used=sum(one.kv_used for one in mine) / len(mine) if mine else 0.0,
        sequences=sum(one.sequences for one in mine),
        open_requests=facts.open_requests,
        ended=facts.ended,
    )
