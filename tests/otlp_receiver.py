"""A receiver of OTLP over gRPC: what a collector is to a process that sends spans."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Receiver(TraceServiceServicer):
    """`spans`: with the name of the service that sent each."""

    port: int = 0
    tls: grpc.ServerCredentials | None = None
    spans: list[tuple[str, Span]] = field(default_factory=list)

    async def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:  # noqa: N802 — gRPC's servicers are called as in their proto
        for resource in request.resource_spans:
            service = attributes(resource.resource.attributes)["service.name"]
            self.spans += [(service, span) for scope in resource.scope_spans for span in scope.spans]
        return ExportTraceServiceResponse()

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def named(self, name: str) -> list[Span]:
        return [span for _, span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        [span] = self.named(name)
        return span


def attributes(found: Any) -> dict[str, Any]:
    """Attributes of a span, an event or a resource as plain values."""
    return {one.key: _plain(one.value) for one in found if isinstance(one, KeyValue)}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))


@asynccontextmanager
async def otlp_receiver(tls: grpc.ServerCredentials | None = None) -> AsyncIterator[Receiver]:
    """Serves on a free port of this machine."""
    receiver, server = Receiver(tls=tls), grpc.aio.server()
    add_TraceServiceServicer_to_server(receiver, server)
    place = "127.0.0.1:0"
    receiver.port = server.add_secure_port(place, tls) if tls else server.add_insecure_port(place)
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(0)
