"""Condition Redundant: schedulers, and gateways, run on different nodes.

Kubernetes spreads pods only when it schedules them: after a drain they may share the remaining node, and stay there.
"""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, yes
from aegaeon_operator.reconcile.cluster.facts import Json, Observed
from aegaeon_operator.reconcile.cluster.names import SCHEDULERS, child
from aegaeon_operator.reconcile.cluster.pod_state import is_ready
from aegaeon_operator.reconcile.cluster.readiness import pods_of
from aegaeon_operator.spec.resources import GpuPoolSpec

_KIND = "Redundant"


def redundant(observed: Observed, spec: GpuPoolSpec) -> list[Condition]:
    """Return Redundant for a pool with a standby; no condition for other pools."""
    if not spec.scheduling.standby:
        return []
    nodes = {name: _nodes(observed, name) for name in SCHEDULERS}
    ready = sum(map(bool, nodes.values()))
    if ready < len(SCHEDULERS):
        return [no(_KIND, "NoStandby", f"{ready} of {len(SCHEDULERS)} scheduler pods are ready: there is no standby")]
    if node := _shared(observed):
        kept = f"; {observed.keeps_standby}" if observed.keeps_standby else ""
        return [no(_KIND, "SharedNode", f"scheduler and standby share node {node} and would fail with it{kept}")]
    gateways = _nodes(observed, "gateway")
    if len(gateways) > 1 and len(set(gateways)) == 1:
        how = f"`kubectl rollout restart deployment/{child(observed.key, 'gateway')}` spreads them"
        return [no(_KIND, "SharedNode", f"all gateways share node {gateways[0]} and would fail with it; {how}")]
    return [yes(_KIND, "Spread", "scheduler and standby, and several gateways, run on different nodes")]


def standby_to_move(observed: Observed, stands_by: str) -> Json | None:
    """Return the pod of the standby if it shares the leader's node and both are ready. `stands_by`: component of the
    standby, as reported by itself; "": unknown."""
    spec = observed.spec
    if spec is None or not spec.scheduling.standby or not stands_by or not _shared(observed):
        return None
    return next(pod for pod in pods_of(observed, stands_by) if is_ready(pod))


def _shared(observed: Observed) -> str:
    """Return the node that both schedulers share; "" if they are on different nodes or not both ready."""
    scheduler, standby = (set(_nodes(observed, name)) for name in SCHEDULERS)
    return next(iter(scheduler & standby), "") if len(scheduler | standby) == 1 else ""


def _nodes(observed: Observed, component: str) -> list[str]:
    """Return the nodes of a component's ready pods."""
    return [pod["spec"]["nodeName"] for pod in pods_of(observed, component) if is_ready(pod)]
