"""An answer as a row of blocks, for APIs that have it so: reasoning, text and calls, each begun and ended once.

A text that goes on behind a call is a block of its own. A call is open until the next block begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from aegaeon_gateway.answer.body import TOKEN_BYTES
from aegaeon_gateway.dialects.pieces import Call
from aegaeon_gateway.generation.output import Delta, TokenLogprob

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Block:
    """`index`: its place in the answer; `call` of a call alone."""

    index: int
    kind: Kind
    call: Call | None = None
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Begun:
    """A block has begun; nothing of it is known but its kind and the name of a call."""

    block: Block


@dataclass(frozen=True, slots=True)
class More:
    """A block has more text."""

    block: Block
    text: str
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Ended:
    """A block is complete."""

    block: Block


Event = Begun | More | Ended


class Blocks:
    """Owner of the blocks of one answer. At most one is open."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.finish: str | None = None
        self.stop_reason: str | int | None = None
        self.nbytes = 0
        """that all blocks take, roughly"""
        self._open: Block | None = None

    def take(self, delta: Delta) -> Iterator[Event]:
        """Yield the events that a delta adds; to be iterated to its end."""
        self.finish, self.stop_reason = delta.finish, delta.stop_reason
        self.nbytes += TOKEN_BYTES * (len(delta.tokens) + sum(1 + len(entry.top) for entry in delta.logprobs))
        calls = [*delta.calls]
        if calls and not calls[0].name:
            yield self._more(calls.pop(0).arguments, [])
        if delta.reasoning:
            yield from self._text("reasoning", delta.reasoning, [])
        if delta.text:
            yield from self._text("text", delta.text, delta.logprobs)
        for call in calls:
            yield from self._begin("call", call)
            if call.arguments:
                yield self._more(call.arguments, [])

    def end(self) -> Iterator[Ended]:
        """The answer has ended."""
        if (block := self._open) is not None:
            self._open = None
            yield Ended(block)

    def add_empty_text(self) -> Iterator[Event]:
        """A text that says nothing, for an answer that would have no block."""
        yield from self._begin("text", None)
        yield from self.end()

    def _text(self, kind: Kind, text: str, logprobs: list[TokenLogprob]) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._begin(kind, None)
        yield self._more(text, logprobs)

    def _more(self, text: str, logprobs: list[TokenLogprob]) -> More:
        """Add to the block that is open."""
        assert self._open is not None, "a block has begun"
        self._open.texts.append(text)
        self._open.logprobs += logprobs
        return More(self._open, text, logprobs)

    def _begin(self, kind: Kind, call: Call | None) -> Iterator[Event]:
        yield from self.end()
        self._open = block = Block(len(self.all), kind, call)
        self.all.append(block)
        yield Begun(block)
