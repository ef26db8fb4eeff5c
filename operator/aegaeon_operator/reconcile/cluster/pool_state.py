"""State of a GpuPool that the conditions of its ModelPools share; computed once per reconcile for thousands of them."""

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
class PoolState:
    """The state of a GpuPool. `where`: its name in messages. `silent`: why its scheduler does not answer; "": it does.

    `gateway` and `engines`: its conditions; `decoding`: decoding engines, or their maximum when scaled to zero.
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
    def of(cls, observed: Observed, desired: Desired) -> PoolState:
        """Return the state of the observed pool."""
        key, spec, scheduler = observed.key, observed.spec, observed.scheduler
        where = f"GpuPool {key.name} in namespace {key.namespace}"
        by_role = engines(observed, spec) if spec else {}
        return cls(
            where=where,
            address=f"http://{child(key, 'gateway')}.{key.namespace}.svc:8000/v1",
            usable=spec is not None,
            silent="" if scheduler else _silent(observed, where),
            gateway=gateway_ready(observed, spec.gateway.replicas if spec else 1),
            engines=engines_ready(observed, spec, by_role) if spec else None,
            attached=scheduler is not None and any(engine.attached for engine in scheduler.engines),
            from_zero=spec is not None and comes_from_zero(observed, spec),
            decoding=_decoding(observed),
            device_bytes=spec.memory.device_bytes if spec else None,
            demand=demand(desired.attached.served, scheduler.models if scheduler else {}),
        )


def _silent(observed: Observed, where: str) -> str:
    why = scheduler_ready(observed, observed.spec).reason if observed.spec else "its spec is invalid"
    return f"the scheduler of {where} does not answer ({why}: see its condition SchedulerReady)"


def _decoding(observed: Observed) -> int:
    spec = observed.spec
    if spec is None:
        return 0
    decoding = {role: state.desired for role, state in engines(observed, spec).items() if role != "prefill"}
    return sum(decoding.values()) or sum(spec.roles[role].max or 0 for role in decoding)
