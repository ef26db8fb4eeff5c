"""Traces by OpenTelemetry, sent to a collector by OTLP over gRPC. Without settings no span is recorded, and none costs.

A request is one trace. Its gateway opens the root span, or continues the client's trace (W3C trace context), and passes
it to the scheduler in `Submit.traceparent`, whose spans are its children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, Span, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from aegaeon_proto.channels import NO_PROXY
from aegaeon_proto.outbound.egress import DIRECT, Egress

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_PROPAGATOR = TraceContextTextMapPropagator()
_EXPORT_S = 2  # for one batch, and for what is left at the end
_QUEUE = 16384  # spans that wait to be sent; those beyond are dropped


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """The receiver of spans, and the share of requests that are traced. Raises ValueError."""

    endpoint: str
    """URL of an OTLP receiver for gRPC: http://HOST:4317, or https://"""
    ratio: float = 1.0
    """of requests without a trace context, 0 to 1; of the others those are recorded whose client says so"""
    egress: Egress = DIRECT
    """the way there, and the authorities that its certificate may be of"""

    def __post_init__(self) -> None:
        if not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"key 'otlp_endpoint' must be http://HOST:PORT or https://HOST:PORT, not {self.endpoint!r}"
            )
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"key 'trace_ratio' must be from 0 to 1, not {self.ratio:g}")


class Tracing:
    """Owner of a process's tracer and of what sends its spans. `service` and `instance` name the process."""

    def __init__(self, settings: TracingSettings | None, service: str, instance: str) -> None:
        self.tracer: Tracer = NoOpTracer()
        self._provider: TracerProvider | None = None
        if settings is not None:
            self._provider = _provider(settings, {"service.name": service, "service.instance.id": instance})
            self.tracer = self._provider.get_tracer("aegaeon", version("aegaeon"))

    async def close(self) -> None:
        """Send the remaining spans."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.shutdown)


def _provider(settings: TracingSettings, attributes: Mapping[str, str]) -> TracerProvider:
    """Sends batches from a thread of its own; an unavailable receiver costs spans, never requests.

    The SDK is imported where traces are on alone: 6 MB and 0.15 s.
    """
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    plain = settings.endpoint.startswith("http://")
    exporter = OTLPSpanExporter(
        endpoint=settings.endpoint,
        insecure=plain,
        credentials=None if plain else grpc.ssl_channel_credentials(settings.egress.authorities()),
        timeout=_EXPORT_S,
        channel_options=_way(settings),
    )
    sampler = ParentBased(TraceIdRatioBased(settings.ratio))
    provider = TracerProvider(sampler=sampler, resource=Resource.create(dict(attributes)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))
    return provider


def _way(settings: TracingSettings) -> Any:  # what its own annotation allows is one pair of texts
    """The channel options: without them gRPC would use the environment's proxy."""
    proxy = settings.egress.proxy_of(settings.endpoint)
    return (("grpc.http_proxy", proxy.url),) if proxy else NO_PROXY


def context_of(headers: Mapping[str, str]) -> Context:
    """The trace that a client's headers name; a new one without such headers."""
    return _PROPAGATOR.extract(headers)


def context_of_parent(traceparent: str) -> Context:
    """The trace of a traceparent."""
    return _PROPAGATOR.extract({"traceparent": traceparent})


def traceparent_of(span: Span) -> str:
    """The traceparent for processes that continue the trace; empty when it is not recorded."""
    if not span.is_recording():
        return ""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, set_span_in_context(span))
    return carrier["traceparent"]
