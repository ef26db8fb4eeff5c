"""The calls in one body, passed on while they are generated, or held until it is known that the whole can be read.

A call begins to be passed on once its name is known to be a tool of the request. Behind that its arguments come as they
are written, as long as they are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aegaeon_gateway.dialects.forms import LONGEST_HEAD, Form
from aegaeon_gateway.dialects.json_object import JsonObject
from aegaeon_gateway.dialects.pieces import Call

Read = Callable[[str], list[Call]]
"""all calls of a body; raises ValueError where it cannot be read"""


@dataclass(frozen=True, slots=True)
class Tools:
    """Names of the tools that a model may call. `barred`: tools of the request that must not be; a call of one is
    content.

    `live`: calls are passed on as they come.
    """

    names: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()
    live: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of the end of a body. `left`: text that is part of no call, None where all of it could be read.

    `begun`: some of its calls were passed on, so that `left` is only what is behind them.
    """

    calls: Sequence[Call]
    left: str | None
    begun: bool


class CallStream:
    """One body. `name`: of its one call, where that is not in the body."""

    def __init__(self, form: Form, tools: Tools, name: str = "") -> None:
        self._form = form
        self._tools = tools
        self._name = name
        self._body: list[str] = []
        self._rest = ""  # behind the arguments so far
        self._tail: list[str] = []  # behind that, once no more calls can begin
        self._arguments: JsonObject | None = None  # those that are open
        self._parts: list[Call] = []  # not passed on yet
        self._begun = 0
        self._over = False
        self._whole: JsonObject | None = JsonObject()  # of a body that is one object, as far as it was looked at
        self._checked = 0  # parts of the body that it has read

    def feed(self, text: str) -> list[Call]:
        """Take the next part of the body; returns what can be passed on."""
        self._body.append(text)
        if self._over:
            self._tail.append(text)
        else:
            self._rest += text
            while self._more() if self._arguments is not None else self._begin():
                pass
        return self._taken() if self._tools.live else []

    @property
    def in_text(self) -> bool:
        """True when the body so far ends within a string of its JSON: a mark inside it is part of the string."""
        if self._arguments is not None:
            return self._arguments.in_string
        if self._begun:
            return False
        for part in self._body[self._checked :]:  # written otherwise than `form`: its object is followed from here on
            if self._whole is not None and self._whole.feed(part) < len(part):
                self._whole = None
        self._checked = len(self._body)
        return self._whole is not None and self._whole.in_string

    def end(self, read: Read, *, known: bool = False) -> Ended:
        """The body is complete. `known`: it is only one of calls if all of them are of tools."""
        body, tools = "".join(self._body), self._tools
        calls = _read(read, body)
        names = {call.name for call in calls}
        if calls and not names & tools.barred and (not known or names <= tools.names):
            return Ended([*self._taken(), *calls[self._begun :]], None, begun=False)
        begun = tools.live and self._begun > 0
        return Ended([], "".join((self._rest, *self._tail)) if begun else body, begun)

    def _begin(self) -> bool:
        """Look for the next call; True when one has begun."""
        pattern = self._form.following if self._begun else self._form.head
        match = pattern.match(self._rest) if pattern is not None else None
        if match is None:
            self._over = pattern is None or len(self._rest) > LONGEST_HEAD
            return False
        name = match[match.lastindex].strip() if match.lastindex else self._name
        if name not in self._tools.names:
            self._over = True
            return False
        self._begun += 1
        self._parts.append(Call(name, ""))
        self._rest = self._rest[match.end() :]
        self._arguments = JsonObject()
        return True

    def _more(self) -> bool:
        """Read on in the arguments; True when they are complete."""
        assert self._arguments is not None, "a call has begun"
        used = self._arguments.feed(self._rest)
        if used:
            self._parts.append(Call("", self._rest[:used]))
            self._rest = self._rest[used:]
        if self._arguments.complete:
            self._arguments = None
            return True
        self._over = bool(self._rest)  # it is no JSON from here on
        return False

    def _taken(self) -> list[Call]:
        parts, self._parts = self._parts, []
        return parts


def _read(read: Read, body: str) -> list[Call]:
    """None where it cannot be read."""
    try:
        return read(body)
    except ValueError:
        return []
