"""What the conditions of all ModelPools of a pool have in common: computed once a look, not for each of thousands."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_operator.reconcile.cluster.admission import Demand, demand
from aegaeon_operator.reconcile.cluster.conditions import Condition
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import Observed
from aegaeon_operator.reconcile.cluster.names import child
from aegaeon_operator.reconcile.cluster.readiness import (
    comes_from_zero,
    engines,
    engines_ready,
    gateway_ready,
    scheduler_ready,
)


@dataclass(frozen=True, slots=True)
class PoolWide:
    """Of a GpuPool, which `where` names in sentences. `silent`: why its scheduler says nothing; empty: it has spoken.

    `gateway` and `engines` are its conditions, `decoding` the engines that decode, as many as there may be when needed.
    """

    where: str
    address: str
    usable: bool
    silent: str
    gateway: Condition
    engines: Condition | None
    attached: bool
    from_zero: bool
    decoding: int
    device_bytes: int | None
    demand: Demand

    @classmethod
    def of(cls, observed: Observed, wanted: Desired) -> PoolWide:
        """As observed."""
        key, spec, scheduler = observed.key, observed.spec, observed.scheduler
        where = f"GpuPool {key.name} in namespace {key.namespace}"
        found = engines(observed, spec) if spec else {}
        return cls(
            where=where,
            address=f"http://{child(key, 'gateway')}.{key.namespace}.svc:8000/v1",
            usable=spec is not None,
            silent="" if scheduler else _silent(observed, where),
            gateway=gateway_ready(observed, spec.gateway.replicas if spec else 1),
            engines=engines_ready(observed, spec, found) if spec else None,
            attached=scheduler is not None and any(one.attached for one in scheduler.engines),
            from_zero=spec is not None and comes_from_zero(observed, spec),
            decoding=_decoding(observed),
            device_bytes=spec.memory.device_bytes if spec else None,
            demand=demand(wanted.attached.served, scheduler.models if scheduler else {}),
        )


def _silent(observed: Observed, where: str) -> str:
    why = scheduler_ready(observed, observed.spec).reason if observed.spec else "its spec is refused"
    return f"the scheduler of {where} does not answer ({why}: see its SchedulerReady)"


def _decoding(observed: Observed) -> int:
    spec = observed.spec
    if spec is None:
        return 0
    found = {role: one.wanted for role, one in engines(observed, spec).items() if role != "prefill"}
    return sum(found.values()) or sum(spec.roles[role].max or 0 for role in found)
