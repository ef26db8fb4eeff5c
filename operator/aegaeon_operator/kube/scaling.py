"""The last desired replicas of a pool, from its StatefulSets and Deployments."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Observed
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, SCHEDULERS, child


def standby(observed: Observed) -> bool:
    """Return whether a second scheduler runs."""
    live = observed.children.get(ChildKey("Deployment", observed.key.namespace, child(observed.key, SCHEDULERS[1])))
    return live is not None and live["spec"].get("replicas", 1) > 0


def replicas(observed: Observed) -> dict[str, int]:
    """Return the replicas by role, for roles with a StatefulSet."""
    counts = {}
    for role, component in COMPONENTS.items():
        live = observed.children.get(ChildKey("StatefulSet", observed.key.namespace, child(observed.key, component)))
        if live is not None and "replicas" in live["spec"]:
            counts[role] = int(live["spec"]["replicas"])
    return counts
