"""The span of one HTTP request, from its header to the end of its answer: the root of all that is done for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from aegaeon_gateway.http.gen_ai import conclude
from aegaeon_gateway.http.record import Record
from aegaeon_proto.tracing import context_of


@contextmanager
def traced(tracer: Tracer, request: web.Request, record: Record) -> Iterator[None]:
    """Around a request that an engine or a worker answers; the trace is the client's where it has one."""
    if request.method != "POST":
        yield
        return
    record.tracer = tracer
    record.span = tracer.start_span(
        f"POST {record.endpoint}",
        context_of(request.headers),
        SpanKind.SERVER,
        {
            "http.request.method": "POST",
            "http.route": record.endpoint,
            "aegaeon.request_id": record.id,
            "http.request.header.x-request-id": [record.headers["X-Request-Id"]],
        },
    )
    try:
        yield
    finally:
        conclude(record.span, record.usage, record.timing, record.finishes)
        _end(record)


def _end(record: Record) -> None:
    span = record.span
    span.set_attribute("http.response.status_code", record.status)
    if record.tenant:
        span.set_attribute("aegaeon.tenant", record.tenant)
    if record.outcome != "ok":
        span.set_attribute("error.type", record.outcome)
        span.set_status(StatusCode.ERROR, record.outcome)
    span.end()
