"""The autoscaler of one pool: its StatefulSets say how many engines there are, the scheduler how they fare."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.autoscale import Load, Memory, step
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, child


@dataclass(slots=True)
class Scaler:
    """Remembers, for each role, since when it has been full or idle."""

    memories: dict[str, Memory] = field(default_factory=dict)

    def step(self, observed: Observed, facts: SchedulerFacts | None, now: float) -> dict[str, int]:
        """Engines by role, for roles with min and max."""
        pool = observed.gpu_pool
        assert pool is not None
        assert pool.value is not None
        spec, wanted = pool.value.spec, {}
        for role, asked in (("unified", spec.engines), ("prefill", spec.prefill), ("decode", spec.decode)):
            if asked is None or asked.min is None or asked.max is None:
                continue
            there = _replicas(observed, role, asked.replicas)
            if facts is None:
                wanted[role] = min(max(there, asked.min), asked.max)
                continue
            mine = [one for one in facts.engines if one.role == role and one.attached]
            load = Load(
                asked=there,
                attached=len(mine),
                oldest_wait_s=facts.oldest_wait_s,
                kv_used=sum(one.kv_used for one in mine) / len(mine) if mine else 0.0,
                sequences=sum(one.sequences for one in mine),
            )
            memory = self.memories.get(role, Memory())
            wanted[role], self.memories[role] = step(load, asked.min, asked.max, spec.autoscaling, memory, now)
        return wanted


def _replicas(observed: Observed, role: str, at_first: int) -> int:
    key = observed.key
    found = observed.children.get(ChildKey("StatefulSet", key.namespace, child(key, COMPONENTS[role])))
    return int(found["spec"].get("replicas", at_first)) if found else at_first
