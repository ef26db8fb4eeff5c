"""The body of an answer that is not streamed, rendered as its tokens come.

With many choices and likeliest tokens the logprobs alone take seconds to render: at the end of the answer they would
hold up every other stream of the gateway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from aegaeon_gateway.answer.logprobs import Naming
from aegaeon_gateway.answer.render import Envelope
from aegaeon_gateway.dialects.pieces import Call
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.generation.request import Request
from aegaeon_proto.v1.gateway_pb2 import PromptLogprob

Json = dict[str, Any]
TOKEN_BYTES = 64
"""of a token that is kept: its id, its text"""


@dataclass(slots=True)
class Collected:
    """One choice. `columns`: its logprobs by name, each a list of rendered pieces, or None where the shape has null."""

    index: int
    texts: list[str] = field(default_factory=list)
    reasoned: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    columns: dict[str, list[bytes] | None] = field(default_factory=dict)
    finish: str | None = None
    stop_reason: str | int | None = None
    prompt: list[PromptLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.reasoned)

    @property
    def logprobs(self) -> orjson.Fragment | None:
        """The logprobs in the answer's shape; None when they were not requested."""
        if not self.columns:
            return None
        columns = (b'"%b":%b' % (name.encode(), _list(parts)) for name, parts in self.columns.items())
        return orjson.Fragment(b"{" + b",".join(columns) + b"}")

    def add(self, delta: Delta, logprobs: Json | None) -> int:
        """Keep what is new, `logprobs` in the endpoint's shape; returns the bytes that it takes."""
        self.texts.append(delta.text)
        self.reasoned.append(delta.reasoning)
        self.calls += delta.calls
        self.tokens += delta.tokens
        self.finish, self.stop_reason = delta.finish, delta.stop_reason
        self.prompt = delta.prompt or self.prompt
        return TOKEN_BYTES * len(delta.tokens) + sum(self._append(*column) for column in (logprobs or {}).items())

    def _append(self, name: str, values: list[Any] | None) -> int:
        if values is None:
            self.columns[name] = None
            return 0
        parts = self.columns.setdefault(name, [])
        assert parts is not None, "a column is null in all deltas or in none"
        if not values:
            return 0
        parts.append(orjson.dumps(values)[1:-1])
        return len(parts[-1])


class Body:
    """The JSON body of an answer. `logprobs` gives those of a delta in the endpoint's shape, None if not asked for."""

    def __init__(self, logprobs: Callable[[Delta], Json | None]) -> None:
        self._logprobs = logprobs
        self._choices: dict[int, Collected] = {}
        self._nbytes = 0

    def add(self, delta: Delta) -> int:
        """Render and keep a delta; returns the bytes that all so far take."""
        choice = self._choices.setdefault(delta.index, Collected(delta.index))
        self._nbytes += choice.add(delta, self._logprobs(delta))
        return self._nbytes

    def prompt_of(self, index: int) -> list[PromptLogprob]:
        """Logprobs of the prompt of a choice."""
        return self._choices[index].prompt

    def pieces(self, head: Json, render: Callable[[Collected], Json], usage: Usage, more: Json) -> Iterator[bytes]:
        """The JSON object in pieces of one choice each: `head`, `choices`, `usage` and `more` in this order."""
        yield orjson.dumps(head)[:-1] + b',"choices":['
        for number, index in enumerate(sorted(self._choices)):
            yield (b"," if number else b"") + orjson.dumps(render(self._choices[index]))
        yield b"]," + orjson.dumps({"usage": usage, **more})[1:]


class ChoicesRenderer(ABC):
    """Chats and completions have in common: an envelope of chunks, and a body of choices."""

    def __init__(self, request: Request, envelope: Envelope) -> None:
        options = request.options
        self._request = request
        self._count = options.logprob_count
        self._ids = options.return_token_ids
        self._named = Naming(request.vocabulary, as_ids=options.tokens_as_ids)
        self._plain = not self._ids and not options.continuous_usage
        self._body = Body(self._logprobs)
        self._envelope = envelope
        self.ending, self.failure, self.keep = envelope.ending, envelope.failure, self._body.add

    @abstractmethod
    def _logprobs(self, delta: Delta) -> Json | None:
        """Return those of a delta in the endpoint's shape, None if not requested."""


def _list(parts: list[bytes] | None) -> bytes:
    return b"null" if parts is None else b"[" + b",".join(parts) + b"]"
