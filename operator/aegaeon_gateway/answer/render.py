"""The renderers' interface, server-sent events, and the cheap form of a chunk."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import orjson

from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.generation.request import Request

DONE = b"data: [DONE]\n\n"


class Renderer(Protocol):
    """One endpoint's shapes for one request."""

    def opening(self) -> bytes:
        """Render the events before the first delta of a stream."""
        ...

    def chunk(self, delta: Delta) -> bytes:
        """The events of one delta; empty when the client would see nothing."""
        ...

    def ending(self, usage: Usage) -> bytes:
        """The last events of a stream that is complete."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that ends with an error."""
        ...

    def keep(self, delta: Delta) -> int:
        """Render a delta for the answer as a whole; returns the bytes that are kept of all so far."""
        ...

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        """The whole answer of what was kept, a choice at a time."""
        ...


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def named_event(data: dict[str, Any]) -> bytes:
    """The same with its type as the event's name, as newer endpoints have it."""
    return f"event: {data['type']}\n".encode() + event(data)


class Envelope:
    """The fields that all chunks of one request share, and the cheap form of the most frequent chunk.

    `plain(index, text)` is equal to `chunk` with that choice, but puts prebuilt bytes around the text. `continuous`:
    each chunk has the usage so far, so that none is plain.
    """

    def __init__(self, request: Request, kind: str, before: str, after: str) -> None:
        self.head: dict[str, Any] = {
            "id": request.id,
            "object": kind,
            "created": int(time.time()),
            "model": request.model,
        }
        self.continuous = request.options.continuous_usage
        self._prompt_tokens = [prompt.tokens for prompt in request.prompts]
        self._n = request.options.n
        self._tail: dict[str, Any] = {"usage": None} if request.options.include_usage else {}
        self._before = before
        self._after = after.encode() + (b',"usage":null' if self._tail else b"") + b"}\n\n"
        self._prefixes: dict[int, bytes] = {}

    def chunk(self, choices: list[dict[str, Any]], *, delta: Delta | None = None, **more: Any) -> bytes:
        """`delta`: what the choice is of."""
        tail = {"usage": self._so_far(delta)} if self.continuous and delta is not None else self._tail
        return event({**self.head, "choices": choices, **tail, **more})

    def ending(self, usage: Usage) -> bytes:
        """The usage, where it was asked for, and OpenAI's end of a stream."""
        return (self.chunk([], usage=usage) if self._tail else b"") + DONE

    def failure(self, error: ApiError) -> bytes:
        """As OpenAI's clients understand it."""
        return event(error.body())

    def plain(self, index: int, text: str) -> bytes:
        prefix = self._prefixes.get(index) or self._prefix(index)
        return prefix + orjson.dumps(text) + self._after

    def _prefix(self, index: int) -> bytes:
        head = orjson.dumps(self.head)[:-1]
        prefix = b"data: " + head + f',"choices":[{{"index":{index},{self._before}'.encode()
        self._prefixes[index] = prefix
        return prefix

    def _so_far(self, delta: Delta) -> dict[str, int]:
        prompt = self._prompt_tokens[delta.index // self._n]
        return {"prompt_tokens": prompt, "completion_tokens": delta.total, "total_tokens": prompt + delta.total}
