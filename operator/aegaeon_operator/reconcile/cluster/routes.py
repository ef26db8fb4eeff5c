"""How clients reach a ModelPool's models: HTTPRoutes, and the permission to cross namespaces."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.reconcile.cluster.facts import Json, Key, Live
from aegaeon_operator.reconcile.cluster.names import GATEWAY_PORT, INFERENCE, child, manifest
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool

ROUTING = "gateway.networking.k8s.io"


def routes(key: Key, pool: Live[GpuPool], spec: GpuPoolSpec, model_pools: list[Live[ModelPool]]) -> Iterator[Json]:
    """For those ModelPools that name a Gateway."""
    routed = [one for one in model_pools if one.value and one.value.spec.gateway.parent_refs]
    for one in routed:
        yield _route(key, spec, one)
    elsewhere = sorted({one.namespace for one in routed} - {key.namespace})
    if elsewhere:
        yield _grant(key, pool, spec, elsewhere)


def _backend(key: Key, spec: GpuPoolSpec) -> Json:
    if spec.gateway.endpoint_picker:
        return {"group": INFERENCE, "kind": "InferencePool", "name": key.name}
    return {"group": "", "kind": "Service", "name": child(key, "gateway")}


def _route(key: Key, spec: GpuPoolSpec, pool: Live[ModelPool]) -> Json:
    assert pool.value is not None
    access = pool.value.spec.gateway
    match: Json = {"path": {"type": "PathPrefix", "value": access.path_prefix or "/"}}
    if access.header:
        match["headers"] = [{"type": "Exact", "name": access.header.name, "value": access.header.value}]
    rule: Json = {
        "matches": [match],
        "backendRefs": [{**_backend(key, spec), "namespace": key.namespace, "port": GATEWAY_PORT, "weight": 1}],
        "timeouts": {"request": "0s"},  # a stream may be long
    }
    if access.path_prefix:
        rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": rewrite}]
    found = manifest(f"{ROUTING}/v1", "HTTPRoute", pool.namespace, pool.name, key, pool)
    found["spec"] = {
        "parentRefs": [
            {"group": ROUTING, "kind": "Gateway", **one.model_dump(by_alias=True, exclude_none=True)}
            for one in access.parent_refs
        ],
        "rules": [rule],
    }
    if access.hostnames:
        found["spec"]["hostnames"] = list(access.hostnames)
    return found


def _grant(key: Key, pool: Live[GpuPool], spec: GpuPoolSpec, namespaces: list[str]) -> Json:
    found = manifest(f"{ROUTING}/v1beta1", "ReferenceGrant", key.namespace, child(key, "routes"), key, pool)
    backend = _backend(key, spec)
    found["spec"] = {
        "from": [{"group": ROUTING, "kind": "HTTPRoute", "namespace": namespace} for namespace in namespaces],
        "to": [backend],
    }
    return found
