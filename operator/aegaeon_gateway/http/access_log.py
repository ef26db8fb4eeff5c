"""The access log: one JSON object a line and request, on standard output. Off unless it is asked for.

It says who asked what of which model, what came of it and how long it took; nothing of prompts, answers or keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import orjson

from aegaeon_gateway.http.record import Record


class AccessLog:
    """`write`: takes a line with its end; None: nothing is written."""

    def __init__(self, write: Callable[[bytes], object] | None) -> None:
        self._write = write

    def add(self, record: Record) -> None:
        """A request is over."""
        if self._write is not None:
            self._write(orjson.dumps(_line(record, datetime.now(UTC)), option=orjson.OPT_APPEND_NEWLINE))


def _line(record: Record, now: datetime) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": now.isoformat(timespec="milliseconds"),
        "request_id": record.id,
        "client_request_id": record.client_id,
        "address": record.address,
        "tenant": record.tenant or None,
        "method": record.method,
        "endpoint": record.endpoint,
        "status": record.status,
        "outcome": record.outcome,
        "seconds": round(record.seconds, 6),
        "model": record.model or None,
        "stream": record.stream,
    }
    context = record.span.get_span_context()
    if record.span.is_recording():
        line["trace_id"] = f"{context.trace_id:032x}"
    if record.usage is not None and record.timing is not None:
        line |= {
            "prompt_tokens": record.usage["prompt_tokens"],
            "cached_tokens": record.usage["prompt_tokens_details"]["cached_tokens"],
            "output_tokens": record.usage["completion_tokens"],
            "finish_reasons": list(record.finishes),
            **{name: round(seconds, 6) for name, seconds in asdict(record.timing).items()},
        }
    return line
