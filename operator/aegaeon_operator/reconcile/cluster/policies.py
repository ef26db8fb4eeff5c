"""Network policies of a pool: who may reach its pods, always, and where they may go, where the platform asks for it.

Policies of Kubernetes add up and know addresses, not names: what is at a name outside of the cluster may be any public
address, and on the ports of URLs alone. Ports are those of pods: plugins look behind a Service's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.reconcile.cluster.facts import Json, Key, Live, Observed, Platform
from aegaeon_operator.reconcile.cluster.names import (
    COMPONENTS,
    ENGINE_METRICS,
    GATEWAY_METRICS,
    GATEWAY_PORT,
    SCHEDULER_ADMIN,
    SCHEDULER_METRICS,
    SCHEDULER_PORT,
    SCHEDULERS,
    SINK_PORT,
    child,
    manifest,
    selector,
)
from aegaeon_operator.reconcile.cluster.outward import (
    Namespace,
    Network,
    Reach,
    to_batches,
    to_redis,
    to_sources,
    to_traces,
)
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ServedModel


def policies(
    observed: Observed, pool: Live[GpuPool], spec: GpuPoolSpec, served: tuple[ServedModel, ...]
) -> Iterator[Json]:
    """In: the API from anywhere, the operator to the admin port, roles of the pool to whom they speak with. Out: the
    same, name servers, the API server, and what the manifests name."""
    key, platform = observed.key, observed.platform
    engines, peers = _pods(key, *COMPONENTS.values()), _pods(key, "gateway", *COMPONENTS.values())
    schedulers = reaching([_pods(key, *SCHEDULERS)], SCHEDULER_PORT)
    sources, traces = _outward(key, *to_sources(spec, served)), _outward(key, *to_traces(spec))
    yield policy(
        key,
        pool,
        "gateway",
        [reachable([], GATEWAY_PORT), reachable([engines], SINK_PORT), *scraped(platform, GATEWAY_METRICS)],
        out(platform, schedulers, *sources, *traces, *_outward(key, *to_redis(platform), *to_batches(spec))),
    )
    for name in SCHEDULERS:
        ingress = [
            reachable([peers], SCHEDULER_PORT),
            reachable([_namespace(platform.namespace)], SCHEDULER_ADMIN),
            *scraped(platform, SCHEDULER_METRICS),
        ]
        yield policy(key, pool, name, ingress, to_api_server(platform, *traces))
    egress = out(platform, schedulers, reaching([_pods(key, "gateway")], SINK_PORT), *sources)
    for component in COMPONENTS.values():
        yield policy(key, pool, component, scraped(platform, ENGINE_METRICS), egress)


def policy(key: Key, pool: Live[GpuPool], component: str, ingress: list[Json], egress: list[Json] | None) -> Json:
    """Who may reach a component's pods, and where those may go; None: anywhere."""
    name = child(key, component)
    found = manifest("networking.k8s.io/v1", "NetworkPolicy", key.namespace, name, key, pool, component)
    found["spec"] = {
        "podSelector": {"matchLabels": selector(key, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    if egress is not None:
        found["spec"] |= {"policyTypes": ["Ingress", "Egress"], "egress": egress}
    return found


def scraped(platform: Platform, port: int) -> list[Json]:
    """A port of metrics, which name models and tenants. Kubelet's probes pass a policy in any case."""
    if "*" in platform.metrics_namespaces:
        return [reachable([], port)]
    peers = [_namespace(name) for name in platform.metrics_namespaces]
    return [reachable(peers, port)] if peers else []


def reachable(peers: list[Json], port: int) -> Json:
    """A port, by these peers; no peers: by every client."""
    return _tcp(port) | ({"from": peers} if peers else {})


def reaching(peers: list[Json], *ports: int) -> Json:
    """Ports of these peers; no peers: of all addresses; no ports: all of them."""
    return (_tcp(*ports) if ports else {}) | ({"to": peers} if peers else {})


def _tcp(*ports: int) -> Json:
    return {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def out(platform: Platform, *rules: Json) -> list[Json] | None:
    """These, and name servers, wherever they run; None where the platform restricts nothing."""
    if platform.egress is None:
        return None
    ports = platform.egress.dns_ports
    names = [{"port": port, "protocol": protocol} for port in ports for protocol in ("UDP", "TCP")]
    distinct = [rule for place, rule in enumerate(rules) if rule not in rules[:place]]
    return [{"ports": names}, *distinct]


def to_api_server(platform: Platform, *rules: Json) -> list[Json] | None:
    """The API server, which has no label to select, and these."""
    return out(platform, reaching([], *platform.egress.api_server_ports), *rules) if platform.egress else None


def _outward(key: Key, *reaches: Reach) -> list[Json]:
    return [reaching([_peer(key, one) for one in reach.peers], *reach.ports) for reach in reaches]


def _peer(key: Key, peer: Network | Namespace) -> Json:
    if isinstance(peer, Namespace):
        return _namespace(peer.name or key.namespace)
    return {"ipBlock": {"cidr": peer.cidr} | ({"except": list(peer.left_out)} if peer.left_out else {})}


def _pods(key: Key, *components: str) -> Json:
    """Pods of the pool that are one of these."""
    one_of = {"key": "app.kubernetes.io/component", "operator": "In", "values": sorted(components)}
    return {"podSelector": {"matchLabels": selector(key), "matchExpressions": [one_of]}}


def _namespace(name: str) -> Json:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
