"""The endpoint picker of a pool: its pods, how they are reached, what they may read, and the InferencePool."""

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
    """Everything of it; nothing where the pool asks for none."""
    asked = spec.gateway.endpoint_picker
    if asked is None:
        return
    key = observed.key
    yield _inference_pool(key, pool, asked)
    if asked.service is None:
        yield from account(key, pool, "picker", observed.platform.picker_role)
        yield deployment(key, pool, "picker", asked.replicas, picker_pod(key, spec, asked.limits, observed.platform))
        yield _service(key, pool)
        yield budget(key, pool, "picker")
        ingress = [reachable(_allowed(asked), PICKER_PORT), *scraped(observed.platform, PICKER_METRICS)]
        yield policy(key, pool, "picker", ingress, to_api_server(observed.platform))
        if observed.platform.provider == "istio":
            yield _unchecked(key, pool)


def _inference_pool(key: Key, pool: Live[GpuPool], asked: EndpointPicker) -> Json:
    at = asked.service or PickerService(name=child(key, "picker"), port=PICKER_PORT)
    found = manifest(f"{INFERENCE}/v1", "InferencePool", key.namespace, key.name, key, pool)
    found["spec"] = {
        "selector": {"matchLabels": selector(key, "gateway")},
        "targetPorts": [{"number": GATEWAY_PORT}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": at.name,
            "port": {"number": at.port},
            "failureMode": asked.failure_mode,
        },
    }
    return found


def _allowed(asked: EndpointPicker) -> list[Json]:
    """Peers of the NetworkPolicy: proxies of Gateways, wherever they run, or whom the pool names."""
    if asked.allowed_from is None:
        return [
            {"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]}}
            for label in _PROXIES
        ]
    return [_peer(each) for each in asked.allowed_from]


def _peer(named: PickerPeer) -> Json:
    if named.cidr is not None:
        return {"ipBlock": {"cidr": named.cidr}}
    within = {"kubernetes.io/metadata.name": named.namespace} if named.namespace else {}
    found: Json = {"namespaceSelector": {"matchLabels": within} if within else {}}
    if named.pod_labels:
        found["podSelector"] = {"matchLabels": dict(named.pod_labels)}
    return found


def _service(key: Key, pool: Live[GpuPool]) -> Json:
    found = service(key, pool, "picker", grpc=PICKER_PORT)
    found["spec"]["ports"][0]["appProtocol"] = "http2"
    return found


def _unchecked(key: Key, pool: Live[GpuPool]) -> Json:
    """Istio would not talk to a certificate that signed itself."""
    name = child(key, "picker")
    found = manifest("networking.istio.io/v1", "DestinationRule", key.namespace, name, key, pool, "picker")
    found["spec"] = {
        "host": f"{name}.{key.namespace}.svc.cluster.local",
        "trafficPolicy": {"tls": {"mode": "SIMPLE", "insecureSkipVerify": True}},
    }
    return found
