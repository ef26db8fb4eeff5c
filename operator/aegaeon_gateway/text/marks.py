"""Marks in a stream of text: the one that is complete first, and how much of the text may still become one."""

from __future__ import annotations

from collections.abc import Sequence


def first_mark(text: str, marks: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Where it begins, and which it is; of several that end together the longest.

    The one that ends first, not that begins first: so it does not depend on how the text is cut. `start`: characters
    that were looked at already.
    """
    places = [(text.find(mark, max(start - len(mark) + 1, 0)), mark) for mark in marks]
    hits = [(at + len(mark), at, mark) for at, mark in places if at >= 0]
    if not hits:
        return None
    _, at, mark = min(hits)
    return at, mark


def possible_mark(text: str, marks: Sequence[str]) -> int:
    """Characters at the end of a text that may be the beginning of a mark."""
    longest = max(map(len, marks), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[len(text) - length :]
        if any(mark.startswith(tail) for mark in marks):
            return length
    return 0


class Unread:
    """Text that has come and is not read yet. Which marks count may change with each one that is read."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        """The next part of the stream."""
        self.text += text

    def to_mark(self, marks: Sequence[str]) -> tuple[str, str] | None:
        """Take the text before the first complete mark, and the mark; None when there is none."""
        hit = first_mark(self.text, marks)
        if hit is None:
            return None
        at, mark = hit
        before, self.text = self.text[:at], self.text[at + len(mark) :]
        return before, mark

    def certain(self, marks: Sequence[str]) -> str:
        """Take what cannot become a part of a mark any more."""
        end = len(self.text) - possible_mark(self.text, marks)
        certain, self.text = self.text[:end], self.text[end:]
        return certain

    def rest(self) -> str:
        """Take all: the stream has ended."""
        rest, self.text = self.text, ""
        return rest
