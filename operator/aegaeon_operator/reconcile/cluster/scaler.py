"""The autoscaler of one pool: computes the number of engines by role from the scheduler's load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.autoscale import Load, Memory, step
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts
from aegaeon_operator.spec.resources import GpuPoolSpec


@dataclass(slots=True)
class Scaler:
    """The autoscaler's state of each role."""

    memories: dict[str, Memory] = field(default_factory=dict)

    def step(
        self, spec: GpuPoolSpec, current: Mapping[str, int], facts: SchedulerFacts | None, now: float
    ) -> dict[str, int]:
        """Return engines by role, for roles with min and max. `current`: the last desired numbers of existing roles."""
        desired = {}
        for role, bounds in spec.roles.items():
            if bounds.min is None or bounds.max is None:
                continue
            count = current.get(role, bounds.replicas)
            if facts is None:
                desired[role] = min(max(count, bounds.min), bounds.max)
                continue
            memory = self.memories.get(role, Memory())
            load = _load(role, count, facts)
            desired[role], self.memories[role] = step(load, bounds.min, bounds.max, spec.autoscaling, memory, now)
        return desired


def _load(role: str, desired: int, facts: SchedulerFacts) -> Load:
    engines = [engine for engine in facts.engines if engine.role == role and engine.attached]
    return Load(
        desired=desired,
        attached=len(engines),
        oldest_wait_s=facts.oldest_wait_s,
        kv_used=sum(engine.kv_used for engine in engines) / len(engines) if engines else 0.0,
        sequences=sum(engine.sequences for engine in engines),
        open_requests=facts.open_requests,
        ended=facts.ended,
    )
