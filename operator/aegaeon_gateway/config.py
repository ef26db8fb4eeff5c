"""The gateway's configuration: read once at the start, passed down, never read from the environment."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from aegaeon_gateway.batches.settings import BatchSettings
from aegaeon_gateway.errors import ConfigError
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.egress import DIRECT, Egress, from_environment
from aegaeon_proto.outbound.policy import Policy
from aegaeon_proto.settings import read_settings
from aegaeon_proto.tracing import TracingSettings

MOST_TOKENIZER_BYTES = 2 << 30
PrefixScope = Literal["tenant", "pool"]
_ORIGIN = re.compile(r"[a-z][a-z0-9+.\-]*://[^/?#\s]+")


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"must be host:port, not {text!r}")
    return text


def _page_address(text: str) -> str:
    return text if text.startswith("unix:") else _address(text)


def _network(text: str) -> str:
    ipaddress.ip_network(text)
    return text


def _origin(text: str) -> str:
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise ValueError(f"{text!r} is no origin, such as https://chat.example.com")
    return text


def _sources(entries: tuple[str, ...]) -> tuple[str, ...]:
    Policy(entries)
    return entries


_Count = Annotated[int, Field(ge=0)]
_Some = Annotated[int, Field(gt=0)]
_Amount = Annotated[float, Field(ge=0)]
_Positive = Annotated[float, Field(gt=0)]
_Address = Annotated[str, AfterValidator(_address)]
_PageAddress = Annotated[str, AfterValidator(_page_address)]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of clients' connections. No time-out is disabled by 0: every figure is above it."""

    connections: _Some = 4096
    """in all; beyond them those without a whole request are closed, then new ones are refused with 503"""
    connections_per_address: _Some = 1024
    """of one IPv4 address or IPv6 /64; beyond them as above, of that address, and 429"""
    trusted_proxies: tuple[Annotated[str, AfterValidator(_network)], ...] = ()
    """networks whose connections are not counted by address and may be idle for longer than proxies keep theirs"""
    requests_per_connection: _Some = 1000
    """the last of them is answered with Connection: close, so that clients spread over gateways"""
    idle_s: _Positive = 75.0
    """seconds that a connection may wait for the next request"""
    header_s: _Positive = 10.0
    """seconds from the first byte of a header to its last"""
    header_bytes: _Some = 32 << 10
    """of request line and header together; a field has 8190 at most, and there are 100 at most"""
    body_s: _Positive = 20.0
    """seconds that a body may take, and one more for every `body_bytes_per_s` received"""
    body_bytes_per_s: _Some = 16 << 10
    """slower bodies are refused with 408"""
    bodies_bytes: _Some = 128 << 20
    """of incomplete bodies of all connections; beyond it the largest of them is refused with 503"""
    write_s: _Positive = 30.0
    """seconds in which a client that does not keep up must take the 64 KiB that are buffered for it"""
    allowed_hosts: tuple[str, ...] = ()
    """names, besides localhost, under which a gateway that listens on a loopback address serves"""
    cors_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = ()
    """origins of web pages whose scripts may use the gateway from a browser, https://chat.example.com; "*": any"""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of one gateway process."""

    name: str
    """unique among the gateways of a pool"""
    listen: _Address
    """host:port of the HTTP server; port 0 takes a free one"""
    scheduler: str
    """gRPC target of the scheduler"""
    sink: str
    """gRPC target under which this gateway serves TokenSink; sidecars dial it"""
    standbys: tuple[str, ...] = ()
    """gRPC targets of schedulers that stand by; whichever of all leads is used"""
    tls: str | None = None
    """folder of ca.crt, tls.crt and tls.key: mutual TLS with scheduler and sidecars; None: plaintext"""
    max_body_bytes: _Count = 8 << 20
    """a larger request body is refused with 413"""
    max_open_requests: _Some = 4096
    """requests that are being read, worked on and answered at a time; more are answered with 503"""
    request_memory_bytes: _Count = 256 << 20
    """of their bodies and prompts, without the first 64 KiB of each; what does not fit is answered with 503"""
    workers: _Some = 2
    """processes that check, render and tokenize small requests, and as many at the lowest priority for large ones"""
    worker_cpu_s: _Amount = 10.0
    """CPU time that checking, rendering and tokenizing one large request may take"""
    worker_memory_bytes: _Count = 1 << 30
    """and memory, beyond the models' tokenizers, which all workers share"""
    tokenizer_bytes: _Count = MOST_TOKENIZER_BYTES
    """memory of these, which are loaded at a model's first request; those used longest ago make room for others"""
    hub_cache: str | None = None
    """folder for tokenizer files of hub models; None: the library's own"""
    fetched: str | None = None
    """folder for tokenizer files from S3 stores and web servers; None: such models have none"""
    allowed_sources: Annotated[tuple[str, ...], AfterValidator(_sources)] = ()
    """hosts and networks that models' files may come from, as a GpuPool's allowedSources; none: any public address"""
    ambient_credentials: bool = False
    """sources without credentials use this machine's, and its proxies; only where the manifests are its owner's"""
    egress: Egress = DIRECT
    """proxies and authorities of certificates for sources, traces and the store of batches; with `ambient_credentials`
    those of the environment take its place"""
    hold_s: _Amount = 30.0
    """seconds that a request waits for the scheduler to take it before it is answered 503"""
    keepalive_s: _Positive = 10.0
    """a stream that says nothing gets a comment every so many seconds, one that waits for an engine to start as well"""
    withdraw_s: _Amount = 0.0
    """seconds after SIGTERM in which connections are still taken: until proxies in front send no new ones"""
    drain_s: _Amount = 10.0
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
    responses_s: _Amount = 3600.0
    """seconds that responses are kept, in that Redis or else in memory, to be read and gone on with"""
    responses: _Count = 1000
    """of each tenant, the oldest go first; clients without a key count as one tenant; 0: none is kept"""
    responses_bytes: _Count = 64 << 20
    """of each tenant; a response has all of its conversation"""
    responses_memory_bytes: _Count = 256 << 20
    """of all tenants, where they are kept in memory"""
    metrics_listen: _PageAddress | None = None
    """host:port or unix:PATH of GET /healthz, /readyz and /metrics; None: nowhere"""
    access_log: bool = False
    """a JSON object on standard output for each request"""
    strict: bool = False
    """requests with what has no effect here are refused, instead of answered with a header that says it"""
    otlp_endpoint: str | None = None
    """URL of an OpenTelemetry collector that takes OTLP over gRPC, http://HOST:4317; None: nothing is traced"""
    trace_ratio: _Amount = 1.0
    """of requests without a trace context, 0 to 1; of the others those are traced whose client says so"""
    batches: BatchSettings | None = None
    """where files and batches are kept, and how much of them; None: there are none"""
    http: HttpLimits = HttpLimits()
    """bounds on what clients' connections may take"""

    def __post_init__(self) -> None:
        """Check the settings of traces. Raises ValueError."""
        _ = self.tracing

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
    return read_settings(path, GatewayConfig, ConfigError, overrides, strict=True)
