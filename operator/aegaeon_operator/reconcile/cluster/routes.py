"""HTTPRoutes of ModelPools, and the ReferenceGrant for routes in other namespaces."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.reconcile.cluster.facts import Json, Key, Live
from aegaeon_operator.reconcile.cluster.names import GATEWAY_PORT, INFERENCE, child, manifest
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ModelPool

ROUTING = "gateway.networking.k8s.io"


def routes(key: Key, pool: Live[GpuPool], spec: GpuPoolSpec, model_pools: list[Live[ModelPool]]) -> Iterator[Json]:
    """Yield the routes of ModelPools with a Gateway."""
    routed = [
        model_pool for model_pool in model_pools if model_pool.value and model_pool.value.spec.gateway.parent_refs
    ]
    for model_pool in routed:
        yield _route(key, spec, model_pool)
    namespaces = sorted({model_pool.namespace for model_pool in routed} - {key.namespace})
    if namespaces:
        yield _grant(key, pool, spec, namespaces)


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
        "timeouts": {"request": "0s"},  # none: streams may be long
    }
    if access.path_prefix:
        rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": rewrite}]
    body = manifest(f"{ROUTING}/v1", "HTTPRoute", pool.namespace, pool.name, key, pool)
    body["spec"] = {
        "parentRefs": [
            {"group": ROUTING, "kind": "Gateway", **parent.model_dump(by_alias=True, exclude_none=True)}
            for parent in access.parent_refs
        ],
        "rules": [rule],
    }
    if access.hostnames:
        body["spec"]["hostnames"] = list(access.hostnames)
    return body


def _grant(key: Key, pool: Live[GpuPool], spec: GpuPoolSpec, namespaces: list[str]) -> Json:
    body = manifest(f"{ROUTING}/v1beta1", "ReferenceGrant", key.namespace, child(key, "routes"), key, pool)
    backend = _backend(key, spec)
    body["spec"] = {
        "from": [{"group": ROUTING, "kind": "HTTPRoute", "namespace": namespace} for namespace in namespaces],
        "to": [backend],
    }
    return body
