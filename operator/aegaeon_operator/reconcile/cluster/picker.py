"""The endpoint picker of a pool: its pods, Service, role, policy, and the InferencePool."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.reconcile.cluster.facts import Json, Key, Live, Observed
from aegaeon_operator.reconcile.cluster.names import (
    GATEWAY_PORT,
    INFERENCE,
    PICKER_METRICS,
    PICKER_PORT,
    child,
    manifest,
    selector,
)
from aegaeon_operator.reconcile.cluster.pods import picker_pod
from aegaeon_operator.reconcile.cluster.policies import policy, reachable, scraped, to_api_server
from aegaeon_operator.reconcile.cluster.workloads import account, budget, deployment, service
from aegaeon_operator.spec.kubernetes import EndpointPicker, PickerPeer, PickerService
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec

# Labels of a Gateway's proxies: the Gateway API's own (GEP-1762; Istio, kgateway, NGINX), and Envoy Gateway's.
_PROXIES = ("gateway.networking.k8s.io/gateway-name", "gateway.envoyproxy.io/owning-gateway-name")


def picker(observed: Observed, pool: Live[GpuPool], spec: GpuPoolSpec) -> Iterator[Json]:
    """Yield the objects of the endpoint picker, if the pool has one."""
    settings = spec.gateway.endpoint_picker
    if settings is None:
        return
    key = observed.key
    yield _inference_pool(key, pool, settings)
    if settings.service is None:
        yield from account(key, pool, "picker", observed.platform.picker_role)
        yield deployment(
            key, pool, "picker", settings.replicas, picker_pod(key, spec, settings.limits, observed.platform)
        )
        yield _service(key, pool)
        yield budget(key, pool, "picker")
        ingress = [reachable(_allowed(settings), PICKER_PORT), *scraped(observed.platform, PICKER_METRICS)]
        yield policy(key, pool, "picker", ingress, to_api_server(observed.platform))
        if observed.platform.provider == "istio":
            yield _unchecked(key, pool)


def _inference_pool(key: Key, pool: Live[GpuPool], settings: EndpointPicker) -> Json:
    at = settings.service or PickerService(name=child(key, "picker"), port=PICKER_PORT)
    body = manifest(f"{INFERENCE}/v1", "InferencePool", key.namespace, key.name, key, pool)
    body["spec"] = {
        "selector": {"matchLabels": selector(key, "gateway")},
        "targetPorts": [{"number": GATEWAY_PORT}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": at.name,
            "port": {"number": at.port},
            "failureMode": settings.failure_mode,
        },
    }
    return body


def _allowed(settings: EndpointPicker) -> list[Json]:
    """Return the peers of the NetworkPolicy: those in the spec, or by default the proxies of Gateways."""
    if settings.allowed_from is None:
        return [
            {"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]}}
            for label in _PROXIES
        ]
    return [_peer(peer) for peer in settings.allowed_from]


def _peer(peer: PickerPeer) -> Json:
    if peer.cidr is not None:
        return {"ipBlock": {"cidr": peer.cidr}}
    within = {"kubernetes.io/metadata.name": peer.namespace} if peer.namespace else {}
    entry: Json = {"namespaceSelector": {"matchLabels": within} if within else {}}
    if peer.pod_labels:
        entry["podSelector"] = {"matchLabels": dict(peer.pod_labels)}
    return entry


def _service(key: Key, pool: Live[GpuPool]) -> Json:
    body = service(key, pool, "picker", grpc=PICKER_PORT)
    body["spec"]["ports"][0]["appProtocol"] = "http2"
    return body


def _unchecked(key: Key, pool: Live[GpuPool]) -> Json:
    """Return the rule that makes Istio accept the picker's self-signed certificate."""
    name = child(key, "picker")
    body = manifest("networking.istio.io/v1", "DestinationRule", key.namespace, name, key, pool, "picker")
    body["spec"] = {
        "host": f"{name}.{key.namespace}.svc.cluster.local",
        "trafficPolicy": {"tls": {"mode": "SIMPLE", "insecureSkipVerify": True}},
    }
    return body
