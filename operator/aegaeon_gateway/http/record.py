"""The record of one HTTP request: its client reads it in headers, operators in the access log and in the trace."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.trace import INVALID_SPAN, NoOpTracer, Span, Tracer, set_span_in_context

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.pooled import Pooling
from aegaeon_gateway.generation.output import Usage
from aegaeon_gateway.generation.request import Marks, Request
from aegaeon_gateway.generation.timing import Timing
from aegaeon_gateway.http.gen_ai import describe
from aegaeon_proto.tracing import traceparent_of

_ACCEPTED_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass(slots=True)
class Record:
    """`id` is ours, `client_id` the sound one that the client sent, if any; `endpoint` is one of our routes.

    `began`: time.monotonic(). `outcome`: "ok", "cancelled", or the code of the error. `headers`: of the answer.
    """

    id: str
    client_id: str | None
    method: str
    endpoint: str
    address: str
    began: float
    tracer: Tracer = field(default_factory=NoOpTracer)
    span: Span = INVALID_SPAN
    tenant: str = ""
    model: str = ""
    stream: bool = False
    status: int = 0
    outcome: str = ""
    usage: Usage | None = None
    timing: Timing | None = None
    finishes: Sequence[str] = ()
    headers: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def of(request: web.Request) -> Record:
        """Begin the record of a request that is about to be handled."""
        claimed = request.headers.get("X-Request-Id", "")
        client_id = claimed if _ACCEPTED_ID.fullmatch(claimed) else None
        resource = request.match_info.route.resource
        endpoint = resource.canonical if resource else "unknown"  # never what the client wrote
        record = Record(uuid.uuid4().hex, client_id, request.method, endpoint, request.remote or "", time.monotonic())
        record.headers["X-Request-Id"] = client_id or record.id
        return record

    @property
    def log_id(self) -> str:
        """Both ids, for the log."""
        return f"{self.id} (client's {self.client_id})" if self.client_id else self.id

    @property
    def marks(self) -> Marks:
        """For what is done for it elsewhere."""
        return Marks(self.log_id, traceparent_of(self.span))

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A span below the request's, around a part of the work."""
        with self.tracer.start_as_current_span(name, context=set_span_in_context(self.span)):
            yield

    def requested(self, request: Request) -> None:
        """Record the request of engines."""
        self.stream = request.options.stream
        describe(self.span, request)

    def answered(self, answer: Answer | Pooling) -> None:
        """An answer is over, however it ended."""
        self.usage, self.timing, self.finishes = answer.usage, answer.timing, answer.finishes


RECORD = web.RequestKey("record", Record)
