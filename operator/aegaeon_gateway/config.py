"""The gateway's configuration: read once at the start, passed down, never read from the environment."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from pydantic import TypeAdapter, ValidationError

from aegaeon_gateway.batches.settings import BatchSettings, batch_settings
from aegaeon_gateway.errors import ConfigError
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.egress import DIRECT, Egress, from_environment
from aegaeon_proto.outbound.policy import EntryError, Policy
from aegaeon_proto.tracing import TracingSettings

MOST_TOKENIZER_BYTES = 2 << 30
PrefixScope = Literal["tenant", "pool"]
_ORIGIN = re.compile(r"[a-z][a-z0-9+.\-]*://[^/?#\s]+")
_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "listen": (str,),
    "scheduler": (str,),
    "standbys": (list,),
    "sink": (str,),
    "tls": (str, type(None)),
    "max_body_bytes": (int,),
    "max_open_requests": (int,),
    "request_memory_bytes": (int,),
    "workers": (int,),
    "worker_cpu_s": (int, float),
    "worker_memory_bytes": (int,),
    "tokenizer_bytes": (int,),
    "hub_cache": (str, type(None)),
    "fetched": (str, type(None)),
    "allowed_sources": (list,),
    "ambient_credentials": (bool,),
    "egress": (dict,),
    "hold_s": (int, float),
    "keepalive_s": (int, float),
    "withdraw_s": (int, float),
    "drain_s": (int, float),
    "tenants": (str, type(None)),
    "tenants_by_scheduler": (bool,),
    "prefix_scope": (str,),
    "prefix_secret_file": (str, type(None)),
    "redis": (str, type(None)),
    "redis_password_file": (str, type(None)),
    "redis_ca_file": (str, type(None)),
    "responses_s": (int, float),
    "responses": (int,),
    "responses_bytes": (int,),
    "responses_memory_bytes": (int,),
    "metrics_listen": (str, type(None)),
    "access_log": (bool,),
    "strict": (bool,),
    "otlp_endpoint": (str, type(None)),
    "trace_ratio": (int, float),
    "batches": (dict, type(None)),
    "http": (dict,),
}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of clients' connections. No time-out is disabled by 0: every figure is above it."""

    connections: int = 4096
    """in all; beyond them those without a whole request are closed, then new ones are refused with 503"""
    connections_per_address: int = 1024
    """of one IPv4 address or IPv6 /64; beyond them as above, of that address, and 429"""
    trusted_proxies: tuple[str, ...] = ()
    """networks whose connections are not counted by address and may be idle for longer than proxies keep theirs"""
    requests_per_connection: int = 1000
    """the last of them is answered with Connection: close, so that clients spread over gateways"""
    idle_s: float = 75.0
    """seconds that a connection may wait for the next request"""
    header_s: float = 10.0
    """seconds from the first byte of a header to its last"""
    header_bytes: int = 32 << 10
    """of request line and header together; a field has 8190 at most, and there are 100 at most"""
    body_s: float = 20.0
    """seconds that a body may take, and one more for every `body_bytes_per_s` received"""
    body_bytes_per_s: int = 16 << 10
    """slower bodies are refused with 408"""
    bodies_bytes: int = 128 << 20
    """of incomplete bodies of all connections; beyond it the largest of them is refused with 503"""
    write_s: float = 30.0
    """seconds in which a client that does not keep up must take the 64 KiB that are buffered for it"""
    allowed_hosts: tuple[str, ...] = ()
    """names, besides localhost, under which a gateway that listens on a loopback address serves"""
    cors_origins: tuple[str, ...] = ()
    """origins of web pages whose scripts may use the gateway from a browser, https://chat.example.com; "*": any"""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of one gateway process."""

    name: str
    """unique among the gateways of a pool"""
    listen: str
    """host:port of the HTTP server; port 0 takes a free one"""
    scheduler: str
    """gRPC target of the scheduler"""
    sink: str
    """gRPC target under which this gateway serves TokenSink; sidecars dial it"""
    standbys: tuple[str, ...] = ()
    """gRPC targets of schedulers that stand by; whichever of all leads is used"""
    tls: str | None = None
    """folder of ca.crt, tls.crt and tls.key: mutual TLS with scheduler and sidecars; None: plaintext"""
    max_body_bytes: int = 8 << 20
    """a larger request body is refused with 413"""
    max_open_requests: int = 4096
    """requests that are being read, worked on and answered at a time; more are answered with 503"""
    request_memory_bytes: int = 256 << 20
    """of their bodies and prompts, without the first 64 KiB of each; what does not fit is answered with 503"""
    workers: int = 2
    """processes that check, render and tokenize small requests, and as many at the lowest priority for large ones"""
    worker_cpu_s: float = 10.0
    """CPU time that checking, rendering and tokenizing one large request may take"""
    worker_memory_bytes: int = 1 << 30
    """and memory, beyond the models' tokenizers, which all workers share"""
    tokenizer_bytes: int = MOST_TOKENIZER_BYTES
    """memory of these, which are loaded at a model's first request; those used longest ago make room for others"""
    hub_cache: str | None = None
    """folder for tokenizer files of hub models; None: the library's own"""
    fetched: str | None = None
    """folder for tokenizer files from S3 stores and web servers; None: such models have none"""
    allowed_sources: tuple[str, ...] = ()
    """hosts and networks that models' files may come from, as a GpuPool's allowedSources; none: any public address"""
    ambient_credentials: bool = False
    """sources without credentials use this machine's, and its proxies; only where the manifests are its owner's"""
    egress: Egress = DIRECT
    """proxies and authorities of certificates for sources, traces and the store of batches; with `ambient_credentials`
    those of the environment take its place"""
    hold_s: float = 30.0
    """seconds that a request waits for the scheduler to take it before it is answered 503"""
    keepalive_s: float = 10.0
    """a stream that says nothing gets a comment every so many seconds, one that waits for an engine to start as well"""
    withdraw_s: float = 0.0
    """seconds after SIGTERM in which connections are still taken: until proxies in front send no new ones"""
    drain_s: float = 10.0
    """seconds that open streams get to end after that"""
    tenants: str | None = None
    """file of tenants, their keys, grants and quotas, read again when it changes; None: everything is open"""
    tenants_by_scheduler: bool = False
    """requests wait until the scheduler has sent its tenants; what it sends takes the place of the file in any case"""
    prefix_scope: PrefixScope = "tenant"
    """whose prompts share KV cache: each tenant's own (clients without a key: theirs together), or all of the pool"""
    prefix_secret_file: str | None = None
    """file of the secret that keeps tenants' caches apart, the same for all gateways; None: this process' own"""
    redis: str | None = None
    """URL of the Redis that counts quotas for all gateways together; None: each counts for itself"""
    redis_password_file: str | None = None
    """file of its password, read again for every connection"""
    redis_ca_file: str | None = None
    """certificate authorities to check a rediss:// server against; None: the system's"""
    responses_s: float = 3600.0
    """seconds that responses are kept, in that Redis or else in memory, to be read and gone on with"""
    responses: int = 1000
    """of each tenant, the oldest go first; clients without a key count as one tenant; 0: none is kept"""
    responses_bytes: int = 64 << 20
    """of each tenant; a response has all of its conversation"""
    responses_memory_bytes: int = 256 << 20
    """of all tenants, where they are kept in memory"""
    metrics_listen: str | None = None
    """host:port or unix:PATH of GET /healthz, /readyz and /metrics; None: nowhere"""
    access_log: bool = False
    """a JSON object on standard output for each request"""
    strict: bool = False
    """requests with what has no effect here are refused, instead of answered with a header that says it"""
    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector that takes OTLP over gRPC, http://HOST:4317; None: nothing is traced"""
    trace_ratio: float = 1.0
    """of requests without a trace context, 0 to 1; of the others those are traced whose client says so"""
    batches: BatchSettings | None = None
    """where files and batches are kept, and how much of them; None: there are none"""
    http: HttpLimits = HttpLimits()
    """bounds on what clients' connections may take"""

    @property
    def outbound(self) -> Outbound:
        """Requests to sources of models."""
        return Outbound(Policy(self.allowed_sources), ambient=self.ambient_credentials, egress=self.way_out)

    @property
    def way_out(self) -> Egress:
        """To servers outside of the pool."""
        return from_environment(os.environ) if self.ambient_credentials else self.egress

    @property
    def tracing(self) -> TracingSettings | None:
        """Raises ValueError."""
        if self.otlp_endpoint is None:
            return None
        return TracingSettings(self.otlp_endpoint, self.trace_ratio, self.way_out)

    @property
    def tls_folder(self) -> Path | None:
        return Path(self.tls) if self.tls else None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of `listen`."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


def load_config(path: Path, overrides: Mapping[str, str] = MappingProxyType({})) -> GatewayConfig:
    """Read a JSON file; `overrides` replace its values. Raises ConfigError naming file and key."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must hold one JSON object")
    try:
        return _checked({**data, **overrides})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _checked(data: dict[str, Any]) -> GatewayConfig:
    fields = dataclasses.fields(GatewayConfig)
    if unknown := sorted(set(data) - set(_TYPES)):
        raise ConfigError(f"unknown key {unknown[0]!r}; allowed are {', '.join(_TYPES)}")
    for field in fields:
        if field.name not in data and field.default is dataclasses.MISSING:
            raise ConfigError(f"key {field.name!r} is missing")
    for key, value in data.items():
        if not isinstance(value, _TYPES[key]) or (isinstance(value, bool) and bool not in _TYPES[key]):
            raise ConfigError(f"key {key!r} has the wrong type {type(value).__name__}")
        if isinstance(value, int | float) and value < 0:
            raise ConfigError(f"key {key!r} must not be negative")
    if data.get("keepalive_s", 1) == 0:
        raise ConfigError("key 'keepalive_s' must be above 0")
    if min(data.get("workers", 1), data.get("max_open_requests", 1)) < 1:
        raise ConfigError("keys 'workers' and 'max_open_requests' must be above 0")
    if data.get("prefix_scope", "tenant") not in get_args(PrefixScope):
        raise ConfigError(f"key 'prefix_scope' must be one of {', '.join(get_args(PrefixScope))}")
    _check_address("listen", data["listen"])
    if (pages := data.get("metrics_listen")) is not None and not pages.startswith("unix:"):
        _check_address("metrics_listen", pages)
    own = {
        "http": _http_limits(data.get("http", {})),
        "allowed_sources": _allowed(data.get("allowed_sources", [])),
        "egress": _egress(data.get("egress", {})),
        "standbys": _texts("standbys", data.get("standbys", [])),
        "batches": batch_settings(data["batches"]) if data.get("batches") is not None else None,
    }
    config = GatewayConfig(**{**data, **own})
    _check_tracing(config)
    return config


def _texts(key: str, entries: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(f"key {key!r} must be a list of text")
    return tuple(entries)


def _check_tracing(config: GatewayConfig) -> None:
    try:
        _ = config.tracing
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _allowed(entries: list[Any]) -> tuple[str, ...]:
    entries = list(_texts("allowed_sources", entries))
    try:
        Policy(entries)
    except EntryError as error:
        raise ConfigError(f"key 'allowed_sources': {error}") from error
    return tuple(entries)


def _egress(data: dict[str, Any]) -> Egress:
    try:
        return TypeAdapter(Egress).validate_python(data, extra="forbid")
    except ValidationError as error:
        raise ConfigError(f"key 'egress': {error.errors(include_url=False)[0]['msg']}") from error


def _check_address(key: str, value: str) -> None:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"key {key!r} must be host:port, not {value!r}")


def _http_limits(data: dict[str, Any]) -> HttpLimits:
    defaults = {field.name: field.default for field in dataclasses.fields(HttpLimits)}
    checked: dict[str, Any] = {}
    for key, value in data.items():
        if key not in defaults:
            raise ConfigError(f"unknown key 'http.{key}'; allowed are {', '.join(defaults)}")
        kind = type(defaults[key])
        if kind is tuple:
            good = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        else:
            good = isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
            if good and value <= 0:
                raise ConfigError(f"key 'http.{key}' must be above 0")
        if not good:
            raise ConfigError(f"key 'http.{key}' has the wrong type {type(value).__name__}")
        checked[key] = tuple(value) if kind is tuple else value
    try:
        for network in checked.get("trusted_proxies", ()):
            ipaddress.ip_network(network)
    except ValueError as error:
        raise ConfigError(f"key 'http.trusted_proxies': {error}") from error
    for origin in checked.get("cors_origins", ()):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise ConfigError(f"key 'http.cors_origins': {origin!r} is no origin, such as https://chat.example.com")
    return HttpLimits(**checked)
