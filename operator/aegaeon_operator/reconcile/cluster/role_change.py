"""Change of engines' roles (unified to prefill and decode, or back): old engines stay until the new ones can serve."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.facts import ChildKey, ModelFacts, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, child
from aegaeon_operator.reconcile.cluster.pod_state import finds_no_node, is_ready_for
from aegaeon_operator.reconcile.cluster.readiness import pods_of

# The longest that old engines stay for a model that the new ones do not serve, for lack of memory for example.
PATIENCE_S = 600.0


def superseded(observed: Observed, facts: SchedulerFacts | None) -> tuple[str, ...]:
    """Return removed roles whose engines stay, since engines of the spec's roles do not serve all models yet.

    If the new engines are unschedulable beside the old ones, the old ones end at once.
    """
    spec = observed.spec
    if spec is None:
        return ()
    removed = [role for role in COMPONENTS if role not in spec.roles and _exists(observed, role)]
    roles = [role for role, bounds in spec.roles.items() if observed.replicas.get(role, bounds.replicas)]
    pods = [pod for role in roles for pod in pods_of(observed, COMPONENTS[role])]
    timed_out = bool(pods) and all(is_ready_for(pod, PATIENCE_S, observed.now) for pod in pods)
    if not roles or timed_out or _serve(roles, facts) or any(map(finds_no_node, pods)):
        return ()
    return tuple(removed)


def _serve(roles: list[str], facts: SchedulerFacts | None) -> bool:
    """Return whether engines of all these roles are attached and serve every model that an engine can serve now."""
    if facts is None or not {engine.role for engine in facts.engines if engine.attached}.issuperset(roles):
        return False
    return all(_is_served(model, roles) for model in facts.models.values())


def _is_served(model: ModelFacts, roles: list[str]) -> bool:
    """Return whether engines of these roles serve a model or fetch it on demand, or no engine can serve it.

    On demand means that requests wait for it: none comes to new engines while old ones, on other nodes, have the model.
    The scheduler names a prefill role only with a decode engine for it, but the roles that fetch on demand each alone.
    """
    first = [role for role in roles if role != "decode"]
    if model.phase in ("failed", "absent") or model.roles.issuperset(first):
        return True
    return (model.roles | model.absent_roles).issuperset(roles)


def _exists(observed: Observed, role: str) -> bool:
    key = ChildKey("StatefulSet", observed.key.namespace, child(observed.key, COMPONENTS[role]))
    live = observed.children.get(key)
    return live is not None and "deletionTimestamp" not in live["metadata"]
