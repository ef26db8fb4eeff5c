"""What a pool asked for last, as its StatefulSets and Deployments have it."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Observed
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, SCHEDULERS, child


def standby(observed: Observed) -> bool:
    """A second scheduler."""
    live = observed.children.get(ChildKey("Deployment", observed.key.namespace, child(observed.key, SCHEDULERS[1])))
    return live is not None and live["spec"].get("replicas", 1) > 0


def replicas(observed: Observed) -> dict[str, int]:
    """By role; one without a StatefulSet is not in it."""
    found = {}
    for role, component in COMPONENTS.items():
        live = observed.children.get(ChildKey("StatefulSet", observed.key.namespace, child(observed.key, component)))
        if live is not None and "replicas" in live["spec"]:
            found[role] = int(live["spec"]["replicas"])
    return found
