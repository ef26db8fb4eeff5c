"""NetworkPolicies of a pool: ingress to its pods and, if the platform enables it, their egress.

NetworkPolicies are additive and know addresses, not names: an external host may have any public address, on the ports
of its URLs only. Ports are those of pods, since plugins evaluate policies behind Services.
"""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.reconcile.cluster.destinations import (
    Destination,
    Namespace,
    Network,
    to_batches,
    to_redis,
    to_sources,
    to_traces,
)
from aegaeon_operator.reconcile.cluster.facts import Json, Key, Live, Observed
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
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.spec.resources import GpuPool, GpuPoolSpec, ServedModel


def policies(
    observed: Observed, pool: Live[GpuPool], spec: GpuPoolSpec, served: tuple[ServedModel, ...]
) -> Iterator[Json]:
    """Yield the policies. Ingress: the API from anywhere, the operator to the admin port, and connections between the
    pool's roles. Egress: these connections, DNS, the API server, and the destinations in the manifests."""
    key, platform = observed.key, observed.platform
    engines, peers = _pods(key, *COMPONENTS.values()), _pods(key, "gateway", *COMPONENTS.values())
    schedulers = reaching([_pods(key, *SCHEDULERS)], SCHEDULER_PORT)
    sources, traces = _external(key, *to_sources(spec, served)), _external(key, *to_traces(spec))
    yield policy(
        key,
        pool,
        "gateway",
        [reachable([], GATEWAY_PORT), reachable([engines], SINK_PORT), *scraped(platform, GATEWAY_METRICS)],
        out(platform, schedulers, *sources, *traces, *_external(key, *to_redis(platform), *to_batches(spec))),
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
    """Return the policy of a component's pods; `egress` None: not restricted."""
    name = child(key, component)
    body = manifest("networking.k8s.io/v1", "NetworkPolicy", key.namespace, name, key, pool, component)
    body["spec"] = {
        "podSelector": {"matchLabels": selector(key, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    if egress is not None:
        body["spec"] |= {"policyTypes": ["Ingress", "Egress"], "egress": egress}
    return body


def scraped(platform: Platform, port: int) -> list[Json]:
    """Return the ingress to a metrics port, restricted since metrics name tenants; kubelet probes always pass."""
    if "*" in platform.metrics_namespaces:
        return [reachable([], port)]
    peers = [_namespace(name) for name in platform.metrics_namespaces]
    return [reachable(peers, port)] if peers else []


def reachable(peers: list[Json], port: int) -> Json:
    """Return the ingress of peers to a port; no peers: any client."""
    return _tcp(port) | ({"from": peers} if peers else {})


def reaching(peers: list[Json], *ports: int) -> Json:
    """Return the egress to ports of peers; no peers: all addresses; no ports: all ports."""
    return (_tcp(*ports) if ports else {}) | ({"to": peers} if peers else {})


def _tcp(*ports: int) -> Json:
    return {"ports": [{"port": port, "protocol": "TCP"} for port in ports]}


def out(platform: Platform, *rules: Json) -> list[Json] | None:
    """Return egress rules with DNS added; None if the platform does not restrict egress."""
    if platform.egress is None:
        return None
    ports = platform.egress.dns_ports
    names = [{"port": port, "protocol": protocol} for port in ports for protocol in ("UDP", "TCP")]
    distinct = [rule for place, rule in enumerate(rules) if rule not in rules[:place]]
    return [{"ports": names}, *distinct]


def to_api_server(platform: Platform, *rules: Json) -> list[Json] | None:
    """Return egress rules with the API server added, which no label selects."""
    return out(platform, reaching([], *platform.egress.api_server_ports), *rules) if platform.egress else None


def _external(key: Key, *destinations: Destination) -> list[Json]:
    return [reaching([_peer(key, peer) for peer in target.peers], *target.ports) for target in destinations]


def _peer(key: Key, peer: Network | Namespace) -> Json:
    if isinstance(peer, Namespace):
        return _namespace(peer.name or key.namespace)
    return {"ipBlock": {"cidr": peer.cidr} | ({"except": list(peer.exceptions)} if peer.exceptions else {})}


def _pods(key: Key, *components: str) -> Json:
    """Return the peer for the pool's pods of these components."""
    one_of = {"key": "app.kubernetes.io/component", "operator": "In", "values": sorted(components)}
    return {"podSelector": {"matchLabels": selector(key), "matchExpressions": [one_of]}}


def _namespace(name: str) -> Json:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
