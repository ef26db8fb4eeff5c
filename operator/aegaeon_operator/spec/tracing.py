"""Traces of requests. `kubectl explain` prints the descriptions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aegaeon_operator.spec.base import Strict

_COLLECTOR = r"^https?://[A-Za-z0-9.\-\[\]:]+/?$"


class Tracing(Strict):
    """Export of requests' spans to an OpenTelemetry collector."""

    endpoint: Annotated[str, Field(min_length=1, max_length=512, pattern=_COLLECTOR)] = Field(
        description="URL of a collector for OTLP over gRPC, for example http://collector.observability:4317. https:// "
        "needs a certificate of a public authority or of one in the pool's `egress`."
    )
    percent: Annotated[int, Field(ge=0, le=100)] = Field(
        default=100,
        description="Percentage of traced requests among those without a trace context; a request with a trace context "
        "is traced if its client set the sampled flag.",
    )
