"""External destinations of a pool's pods, by address and port, as NetworkPolicies can express them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from aegaeon_operator.reconcile.cluster.egress import way_out
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.spec.resources import GpuPoolSpec, ServedModel, Source
from aegaeon_proto.outbound.policy import Entry, parse_entry
from aegaeon_proto.outbound.urls import PORTS

_HUB, _AWS = "https://huggingface.co", "https://s3.amazonaws.com"
_REDIS_PORT = 6379
# The complement of `allowedSources`' public addresses; the process itself refuses other connections as well.
_NOT_PUBLIC = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    *("224.0.0.0/4", "240.0.0.0/4"),
)


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses in CIDR notation, with exceptions."""

    cidr: str
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """All pods of a namespace; "": the pool's own namespace."""

    name: str


@dataclass(frozen=True, slots=True)
class Destination:
    """TCP ports of peers; no peers: all addresses; no ports: all ports."""

    peers: tuple[Network | Namespace, ...] = ()
    ports: tuple[int, ...] = ()


PUBLIC = (Network("0.0.0.0/0", _NOT_PUBLIC), Network("2000::/3"))


def to_sources(spec: GpuPoolSpec, served: tuple[ServedModel, ...]) -> Iterator[Destination]:
    """Yield the servers of served models and adapters, except folders of the nodes.

    A host that `allowedSources` names in full may have a private address: any address, then, on the port of its URL.
    """
    hops = {url: _next_hop(spec, url) for model in served for url in _urls(model)}
    yield from (_to(proxy) for proxy in sorted({hop for url, hop in hops.items() if hop != url}))
    urls = [url for url, hop in hops.items() if hop == url]
    if not urls:
        return
    ports = {_port(url) for url in urls} | {PORTS["https"]}  # http servers often redirect to https
    entries = [parse_entry(text) for text in spec.allowed_sources]
    if not entries or any(entry.host for entry in entries):
        yield Destination(PUBLIC, tuple(sorted(ports)))
    yield from (_within(entry, ports) for entry in entries if entry.network)
    exact = {entry.host for entry in entries if entry.is_exact}
    yield from (_to(url) for url in sorted(set(urls)) if _host(url) in exact)
    # The targets of redirects are in no manifest; those that are no Service are public, or in a listed network.
    yield from (Destination((Namespace(name),)) for host in sorted(exact) if (name := _namespace(host)) is not None)


def to_traces(spec: GpuPoolSpec) -> Iterator[Destination]:
    """Yield the trace collector, if there is one."""
    if spec.tracing:
        yield _to(_next_hop(spec, spec.tracing.endpoint))


def to_batches(spec: GpuPoolSpec) -> Iterator[Destination]:
    """Yield the store of files and batches, unless it is a volume."""
    if spec.batches and spec.batches.s3:
        yield _to(_next_hop(spec, spec.batches.s3.endpoint or _AWS))


def to_redis(platform: Platform) -> Iterator[Destination]:
    """Yield the Redis of all pools, if there is one."""
    if platform.redis:
        yield _to(platform.redis.url, _REDIS_PORT)


def _next_hop(spec: GpuPoolSpec, url: str) -> str:
    """Return the URL of the proxy, or of the server itself."""
    way = replace(way_out(spec), credentials_file="")  # only pods have the file
    proxy = way.proxy_of(url)
    return proxy.url if proxy else url


def _urls(model: ServedModel) -> Iterator[str]:
    for source in (model.source, *(adapter.source for adapter in model.adapters)):
        if (url := _url(source)) is not None:
            yield url


def _url(source: Source) -> str | None:
    """Return the URL of a source; None for a folder of the nodes."""
    if source.hugging_face:
        return _HUB
    if source.s3:
        return source.s3.endpoint or _AWS
    return source.http.url if source.http else None


def _within(entry: Entry, ports: set[int]) -> Destination:
    """Return the destination for a network of `allowedSources`."""
    return Destination((Network(str(entry.network)),), (entry.port,) if entry.port else tuple(sorted(ports)))


def _to(url: str, port: int | None = None) -> Destination:
    """Return the destination for a server that the platform team trusts. A Service needs all ports of its namespace,
    since the ports of its pods are not in the URL."""
    host, port = _host(url), _port(url, port)
    namespace = _namespace(host)
    if namespace is not None:
        return Destination((Namespace(namespace),))
    try:
        address = ip_address(host)
    except ValueError:
        return Destination((), (port,))
    return Destination((Network(f"{address}/{address.max_prefixlen}"),), (port,))


def _namespace(host: str) -> str | None:
    """Return the namespace of a Service: NAME, NAME.NAMESPACE.svc or longer; None: not the name of a Service."""
    labels = host.split(".")
    if len(labels) == 1 and ":" not in host:
        return ""
    return labels[1] if labels[2:3] == ["svc"] else None


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _port(url: str, default: int | None = None) -> int:
    parts = urlsplit(url)
    return parts.port or default or PORTS.get(parts.scheme, PORTS["https"])
