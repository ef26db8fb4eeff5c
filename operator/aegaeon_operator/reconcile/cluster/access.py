"""Condition Routable of a ModelPool: gateways, engines behind them, its own route.

A ModelPool may belong to another team, so its message names the GpuPool's reason and the condition with the details.
"""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, yes
from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.pool_state import PoolState

_ROUTABLE = "Routable"


def unreachable(pool_state: PoolState) -> Condition | None:
    """Return the condition when gateways or engines of the GpuPool cannot serve; None: they can."""
    if pool_state.gateway.status != "True":
        why = pool_state.gateway.reason
        text = f"the gateways of {pool_state.where} cannot serve ({why}: see its condition GatewayReady)"
        return no(_ROUTABLE, "GatewayNotReady", text)
    return without_engines(pool_state, _ROUTABLE)


def without_engines(pool_state: PoolState, kind: str) -> Condition | None:
    """Return the condition when the GpuPool's engines cannot serve; None: they can."""
    why = pool_state.engines
    if why is None or why.status == "True":
        return None
    reason = "NoEngines" if why.reason == "NoEngines" else "EnginesNotReady"
    return no(
        kind, reason, f"the engines of {pool_state.where} cannot serve ({why.reason}: see its condition EnginesReady)"
    )


def by_service(pool_state: PoolState) -> Condition:
    """Return the condition of a ModelPool without a route of its own."""
    return yes(_ROUTABLE, "ServiceReady", f"reached at {pool_state.address}")


def by_route(parents: list[Json]) -> Condition:
    """Return the condition that the Gateways reported in the status of the HTTPRoute."""
    for parent in parents:
        by_type = {state["type"]: state for state in parent.get("conditions", ())}
        if all(by_type.get(kind, {}).get("status") == "True" for kind in ("Accepted", "ResolvedRefs")):
            return yes(_ROUTABLE, "RouteAccepted", "a Gateway has accepted the route")
    refused = [
        f"{condition['reason']}: {condition['message']}"
        for parent in parents
        for condition in parent.get("conditions", ())
        if condition["type"] in ("Accepted", "ResolvedRefs") and condition["status"] != "True"
    ]
    return no(
        _ROUTABLE, "RouteNotAccepted", "; ".join(dict.fromkeys(refused)) or "no Gateway has reported on the route yet"
    )
