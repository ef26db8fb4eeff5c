"""Engines of roles that the spec has no more (split into prefill and decode, or united) stay until others can serve."""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.facts import ChildKey, ModelFacts, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.names import COMPONENTS, child
from aegaeon_operator.reconcile.cluster.pod_state import finds_no_node, is_ready_for
from aegaeon_operator.reconcile.cluster.readiness import pods_of

# A model that the new engines do not come to serve, for lack of room on their nodes for example, keeps the old ones for
# no longer.
PATIENCE_S = 600.0


def superseded(observed: Observed, facts: SchedulerFacts | None) -> tuple[str, ...]:
    """Roles whose engines stay although the spec has them no more: those of its own roles do not serve all models yet.

    Where the new ones find no node beside the old ones, those end at once.
    """
    spec = observed.spec
    if spec is None:
        return ()
    gone = [role for role in COMPONENTS if role not in spec.roles and _is_there(observed, role)]
    wanted = [role for role, asked in spec.roles.items() if observed.replicas.get(role, asked.replicas)]
    pods = [pod for role in wanted for pod in pods_of(observed, COMPONENTS[role])]
    tried = bool(pods) and all(is_ready_for(pod, PATIENCE_S, observed.now) for pod in pods)
    if not wanted or tried or _serve(wanted, facts) or any(map(finds_no_node, pods)):
        return ()
    return tuple(gone)


def _serve(roles: list[str], facts: SchedulerFacts | None) -> bool:
    """Whether engines of all these roles are attached, and serve every model that any engine might serve now."""
    if facts is None or not {engine.role for engine in facts.engines if engine.attached}.issuperset(roles):
        return False
    return all(_is_served(model, roles) for model in facts.models.values())


def _is_served(model: ModelFacts, roles: list[str]) -> bool:
    """What failed everywhere, or is fetched when it is asked for, is served by no engine."""
    first = [role for role in roles if role != "decode"]
    return model.phase in ("failed", "absent") or model.roles.issuperset(first)


def _is_there(observed: Observed, role: str) -> bool:
    key = ChildKey("StatefulSet", observed.key.namespace, child(observed.key, COMPONENTS[role]))
    live = observed.children.get(key)
    return live is not None and "deletionTimestamp" not in live["metadata"]
