"""Whether what stands by would outlive the node of what it stands by for.

Kubernetes spreads pods over nodes when it places them, and never afterwards: a drain brings them together on the node
that is left, and there they stay.
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
    """Of a pool that asks for a standby; others say nothing."""
    if not spec.scheduling.standby:
        return []
    nodes = {name: _nodes(observed, name) for name in SCHEDULERS}
    ready = sum(map(bool, nodes.values()))
    if ready < len(SCHEDULERS):
        return [no(_KIND, "NoStandby", f"{ready} of {len(SCHEDULERS)} scheduler pods are ready: none stands by")]
    if node := _shared(observed):
        kept = f"; {observed.keeps_standby}" if observed.keeps_standby else ""
        return [no(_KIND, "SharedNode", f"scheduler and standby share node {node}, and are lost with it{kept}")]
    gateways = _nodes(observed, "gateway")
    if len(gateways) > 1 and len(set(gateways)) == 1:
        how = f"`kubectl rollout restart deployment/{child(observed.key, 'gateway')}` spreads them"
        return [no(_KIND, "SharedNode", f"all gateways share node {gateways[0]}, and are lost with it; {how}")]
    return [yes(_KIND, "Spread", "scheduler and standby run on two nodes, and so do gateways if there are several")]


def standby_to_move(observed: Observed, stands_by: str) -> Json | None:
    """The pod of the scheduler that stands by (`stands_by`: its component, as it says itself; empty: none does) where
    both are ready on one node. The leader never is."""
    spec = observed.spec
    if spec is None or not spec.scheduling.standby or not stands_by or not _shared(observed):
        return None
    return next(pod for pod in pods_of(observed, stands_by) if is_ready(pod))


def _shared(observed: Observed) -> str:
    """The node of both; empty where they are on two, or not both are ready."""
    scheduler, standby = (set(_nodes(observed, name)) for name in SCHEDULERS)
    return next(iter(scheduler & standby), "") if len(scheduler | standby) == 1 else ""


def _nodes(observed: Observed, component: str) -> list[str]:
    """Of its ready pods."""
    return [pod["spec"]["nodeName"] for pod in pods_of(observed, component) if is_ready(pod)]
