"""The parts of an answer whose text is read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, or a part of one: without a name, `arguments` go on with those of the call before.

    `arguments`: JSON as text, as OpenAI has it.
    """

    name: str
    arguments: str


@dataclass(slots=True)
class Pieces:
    """The content that a part of the text adds, each kind joined in its order."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


def joined(parts: Iterable[Call]) -> list[Call]:
    """The same calls in the fewest parts: only the first may go on with a call that is not among them."""
    calls: list[tuple[str, list[str]]] = []
    for part in parts:
        if calls and not part.name:
            calls[-1][1].append(part.arguments)
        else:
            calls.append((part.name, [part.arguments]))
    return [Call(name, "".join(arguments)) for name, arguments in calls]


class Reader(Protocol):
    """The state of one answer. The pieces, joined, do not depend on how the text is cut."""

    def feed(self, text: str) -> Pieces:
        """Take the next part of the text; return what is certain now."""
        ...

    @property
    def reasoning(self) -> bool:
        """True while the text is within reasoning."""
        ...

    def flush(self) -> Pieces:
        """The text has ended: return the rest. Nothing is lost: what is no call is content."""
        ...
