"""Whom a pool's pods dial outside of their pool, as far as a NetworkPolicy can say it: by address and port."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from aegaeon_operator.reconcile.cluster.egress import way_out
from aegaeon_operator.reconcile.cluster.facts import Platform
from aegaeon_operator.spec.resources import GpuPoolSpec, ServedModel, Source
from aegaeon_proto.outbound.policy import Entry, parse_entry
from aegaeon_proto.outbound.urls import PORTS

_HUB, _AWS = "https://huggingface.co", "https://s3.amazonaws.com"
_REDIS_PORT = 6379
# What `allowedSources` calls public: a connection elsewhere is refused by the process itself, whatever the policy says.
_NOT_PUBLIC = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    *("224.0.0.0/4", "240.0.0.0/4"),
)


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses in CIDR notation, and those within that are left out."""

    cidr: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Namespace:
    """All pods of a namespace; empty: the pool's own."""

    name: str


@dataclass(frozen=True, slots=True)
class Reach:
    """TCP ports of peers; no peers: of all addresses; no ports: all of them."""

    peers: tuple[Network | Namespace, ...] = ()
    ports: tuple[int, ...] = ()


PUBLIC = (Network("0.0.0.0/0", _NOT_PUBLIC), Network("2000::/3"))


def to_sources(spec: GpuPoolSpec, served: tuple[ServedModel, ...]) -> Iterator[Reach]:
    """Where models and adapters that are served come from; nothing where they are folders of the nodes.

    A name that `allowedSources` has in full may be at a private address: any address, then, on the port of its URL.
    """
    hops = {url: _next_hop(spec, url) for model in served for url in _urls(model)}
    yield from (_to(proxy) for proxy in sorted({hop for url, hop in hops.items() if hop != url}))
    urls = [url for url, hop in hops.items() if hop == url]
    if not urls:
        return
    ports = {_port(url) for url in urls} | {PORTS["https"]}  # where http servers like to redirect to
    entries = [parse_entry(text) for text in spec.allowed_sources]
    if not entries or any(one.host for one in entries):
        yield Reach(PUBLIC, tuple(sorted(ports)))
    yield from (_within(one, ports) for one in entries if one.network)
    vouched = {one.host for one in entries if one.is_exact}
    yield from (_to(url) for url in sorted(set(urls)) if _host(url) in vouched)
    # Where a server of the list redirects to is in no manifest; what is no Service is public, or in a network.
    yield from (Reach((Namespace(name),)) for host in sorted(vouched) if (name := _namespace(host)) is not None)


def to_traces(spec: GpuPoolSpec) -> Iterator[Reach]:
    """The collector, where there is one."""
    if spec.tracing:
        yield _to(_next_hop(spec, spec.tracing.endpoint))


def to_batches(spec: GpuPoolSpec) -> Iterator[Reach]:
    """The store of files and batches, where it is no volume."""
    if spec.batches and spec.batches.s3:
        yield _to(_next_hop(spec, spec.batches.s3.endpoint or _AWS))


def to_redis(platform: Platform) -> Iterator[Reach]:
    """The Redis of all pools, where there is one."""
    if platform.redis:
        yield _to(platform.redis.url, _REDIS_PORT)


def _next_hop(spec: GpuPoolSpec, url: str) -> str:
    """The proxy, or the server itself."""
    way = replace(way_out(spec), credentials_file="")  # which are in the pods alone
    proxy = way.proxy_of(url)
    return proxy.url if proxy else url


def _urls(model: ServedModel) -> Iterator[str]:
    for source in (model.source, *(adapter.source for adapter in model.adapters)):
        if (url := _url(source)) is not None:
            yield url


def _url(source: Source) -> str | None:
    """None: of a folder of the nodes."""
    if source.hugging_face:
        return _HUB
    if source.s3:
        return source.s3.endpoint or _AWS
    return source.http.url if source.http else None


def _within(entry: Entry, ports: set[int]) -> Reach:
    """A network of `allowedSources`."""
    return Reach((Network(str(entry.network)),), (entry.port,) if entry.port else tuple(sorted(ports)))


def _to(url: str, port: int | None = None) -> Reach:
    """A server that the platform team vouches for. All ports of a Service's namespace: which its pods listen on is not
    in the URL."""
    host, port = _host(url), _port(url, port)
    namespace = _namespace(host)
    if namespace is not None:
        return Reach((Namespace(namespace),))
    try:
        address = ip_address(host)
    except ValueError:
        return Reach((), (port,))
    return Reach((Network(f"{address}/{address.max_prefixlen}"),), (port,))


def _namespace(host: str) -> str | None:
    """Of a Service: NAME, NAME.NAMESPACE.svc or longer; None: no name of a Service, as far as names tell."""
    labels = host.split(".")
    if len(labels) == 1 and ":" not in host:
        return ""
    return labels[1] if labels[2:3] == ["svc"] else None


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _port(url: str, default: int | None = None) -> int:
    found = urlsplit(url)
    return found.port or default or PORTS.get(found.scheme, PORTS["https"])
