"""Engines of roles that the spec has no more (split into prefill and decode, or united) stay until others can serve."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, child
from aegaeon_operator.reconcile.cluster.pod_state import finds_no_node
from aegaeon_operator.reconcile.cluster.readiness import pods_of


def superseded(observed: Observed, facts: SchedulerFacts | None) -> tuple[str, ...]:
    """Roles whose engines stay although the spec has them no more: its own roles do not all have an engine yet.

    Where the new ones find no node beside the old ones, those end at once.
    """
    spec = observed.spec
    if spec is None:
        return ()
    gone = [role for role in COMPONENTS if role not in spec.roles and _is_there(observed, role)]
    wanted = [role for role, asked in spec.roles.items() if observed.replicas.get(role, asked.replicas)]
    attached = {one.role for one in facts.engines if one.attached} if facts else set()
    starting = [pod for role in wanted for pod in pods_of(observed, COMPONENTS[role])]
    if not wanted or attached.issuperset(wanted) or any(map(finds_no_node, starting)):
        return ()
    return tuple(gone)


def _is_there(observed: Observed, role: str) -> bool:
    key = ChildKey("StatefulSet", observed.key.namespace, child(observed.key, COMPONENTS[role]))
    live = observed.children.get(key)
    return live is not None and "deletionTimestamp" not in live["metadata"]
