"""Whether requests for a ModelPool's models reach an engine: gateways, engines behind them, its own route.

A ModelPool may belong to another team: it learns the word for what its GpuPool lacks, and where to read more.
"""

from __future__ import annotations

from collections.abc import Mapping

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, yes
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Live, Observed
from aegaeon_operator.reconcile.cluster.names import child
from aegaeon_operator.reconcile.cluster.readiness import engines, engines_ready, gateway_ready, scheduler_ready
from aegaeon_operator.spec.resources import ModelPool

_ROUTABLE = "Routable"


def routable(observed: Observed, pool: Live[ModelPool], failures: Mapping[ChildKey, str]) -> Condition:
    """Of a ModelPool of which something is served."""
    key = ChildKey("HTTPRoute", pool.namespace, pool.name)
    if key in failures:
        return no(_ROUTABLE, "RouteFailed", failures[key])
    spec = observed.spec
    gateway = gateway_ready(observed, spec.gateway.replicas if spec else 1)
    if gateway.status != "True":
        text = f"no gateway pod of {_where(observed)} is ready ({gateway.reason}: see its GatewayReady)"
        return no(_ROUTABLE, "GatewayNotReady", text)
    if lacking := without_engines(observed, _ROUTABLE):
        return lacking
    if pool.value is None or not pool.value.spec.gateway.parent_refs:
        where = f"{child(observed.key, 'gateway')}.{observed.key.namespace}.svc"
        return yes(_ROUTABLE, "ServiceReady", f"reached at http://{where}:8000/v1")
    return _route(observed.children.get(key, {}))


def without_engines(observed: Observed, kind: str) -> Condition | None:
    """What the GpuPool's engines lack to serve; None: nothing."""
    spec = observed.spec
    if spec is None:
        return None
    why = engines_ready(observed, spec, engines(observed, spec))
    if why.status == "True":
        return None
    reason = "NoEngines" if why.reason == "NoEngines" else "EnginesNotReady"
    return no(kind, reason, f"the engines of {_where(observed)} cannot serve ({why.reason}: see its EnginesReady)")


def without_scheduler(observed: Observed) -> str:
    """Why nothing is known of the models."""
    spec = observed.spec
    why = scheduler_ready(observed, spec).reason if spec else "its spec is refused"
    return f"the scheduler of {_where(observed)} does not answer ({why}: see its SchedulerReady)"


def _where(observed: Observed) -> str:
    return f"GpuPool {observed.key.name} in namespace {observed.key.namespace}"


def _route(live: Mapping[str, Json]) -> Condition:
    """As the Gateways say, which is read and never written."""
    parents = live.get("status", {}).get("parents", [])
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
