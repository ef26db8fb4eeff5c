"""A request's span in OpenTelemetry's words for generative AI (semantic conventions 1.38, attributes `gen_ai.*`).

Counts and parameters alone: nothing of a prompt or an answer is recorded. What the conventions have no word for is
`aegaeon.*`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict

from opentelemetry.trace import Span

from aegaeon_gateway.generation.output import Usage
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.generation.timing import Timing

_OPERATIONS = {"chatcmpl": "chat", "cmpl": "text_completion", "embd": "embeddings", "msg": "chat", "resp": "chat"}


def describe(span: Span, request: Request) -> None:
    """Add the request's parameters to its span."""
    if not span.is_recording():
        return
    kind = re.split("[-_]", request.id, maxsplit=1)[0]
    operation = _OPERATIONS.get(kind, kind)
    sampling = request.sampling
    span.update_name(f"{operation} {request.model}")
    span.set_attributes(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "aegaeon",
            "gen_ai.request.model": request.model,
            "gen_ai.response.model": request.model,
            "gen_ai.response.id": request.id,
            "gen_ai.request.choice.count": request.options.n,
            "gen_ai.request.max_tokens": max(limits.max_tokens for limits in request.limits),
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.stream": request.options.stream,
        }
    )


def conclude(span: Span, usage: Usage | None, timing: Timing | None, finishes: Sequence[str]) -> None:
    """Add the answer's usage and durations to the span, however it ended."""
    if not span.is_recording() or usage is None or timing is None:
        return
    span.set_attributes(
        {
            "gen_ai.usage.input_tokens": usage["prompt_tokens"],
            "gen_ai.usage.output_tokens": usage["completion_tokens"],
            "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "gen_ai.response.finish_reasons": list(finishes),
            **{f"aegaeon.{name}": seconds for name, seconds in asdict(timing).items()},
        }
    )
    if timing.first_s:
        span.set_attribute("gen_ai.response.time_to_first_chunk", timing.first_s)
