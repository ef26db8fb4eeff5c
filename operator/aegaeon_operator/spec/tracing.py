"""Traces of requests. Descriptions are what `kubectl explain` prints."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aegaeon_operator.spec.base import Strict

_COLLECTOR = r"^https?://[A-Za-z0-9.\-\[\]:]+/?$"


class Tracing(Strict):
    """Spans of requests, for an OpenTelemetry collector."""

    endpoint: Annotated[str, Field(min_length=1, max_length=512, pattern=_COLLECTOR)] = Field(
        description="URL of a collector that takes OTLP over gRPC, http://collector.observability:4317 for example; "
        "https:// with a certificate of a public authority, or of one in the pool's `egress`."
    )
    percent: Annotated[int, Field(ge=0, le=100)] = Field(
        default=100,
        description="Of requests without a trace context; of the others those are traced whose client says so.",
    )
