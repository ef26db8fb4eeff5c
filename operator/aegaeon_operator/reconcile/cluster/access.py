"""Whether requests for a ModelPool's models reach an engine: gateways, engines behind them, its own route.

A ModelPool may belong to another team: it learns the word for what its GpuPool lacks, and where to read more.
"""

from __future__ import annotations

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, yes
from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.pool_wide import PoolWide

_ROUTABLE = "Routable"


def unreachable(wide: PoolWide) -> Condition | None:
    """What the GpuPool lacks for requests to reach an engine; None: nothing."""
    if wide.gateway.status != "True":
        text = f"the gateways of {wide.where} cannot serve ({wide.gateway.reason}: see its GatewayReady)"
        return no(_ROUTABLE, "GatewayNotReady", text)
    return without_engines(wide, _ROUTABLE)


def without_engines(wide: PoolWide, kind: str) -> Condition | None:
    """What the GpuPool's engines lack to serve; None: nothing."""
    why = wide.engines
    if why is None or why.status == "True":
        return None
    reason = "NoEngines" if why.reason == "NoEngines" else "EnginesNotReady"
    return no(kind, reason, f"the engines of {wide.where} cannot serve ({why.reason}: see its EnginesReady)")


def by_service(wide: PoolWide) -> Condition:
    """A ModelPool without a route of its own."""
    return yes(_ROUTABLE, "ServiceReady", f"reached at {wide.address}")


def by_route(parents: list[Json]) -> Condition:
    """As the Gateways say in the status of its HTTPRoute, which is read and never written."""
    for parent in parents:
        said = {one["type"]: one for one in parent.get("conditions", ())}
        if all(said.get(kind, {}).get("status") == "True" for kind in ("Accepted", "ResolvedRefs")):
            return yes(_ROUTABLE, "RouteAccepted", "a Gateway has accepted the route")
    refused = [
        f"{one['reason']}: {one['message']}"
        for parent in parents
        for one in parent.get("conditions", ())
        if one["type"] in ("Accepted", "ResolvedRefs") and one["status"] != "True"
    ]
    return no(
        _ROUTABLE, "RouteNotAccepted", "; ".join(dict.fromkeys(refused)) or "no Gateway has spoken of the route yet"
    )
