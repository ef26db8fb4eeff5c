"""Marks in a stream of text: the one that is complete first, and how much of the text may still become one."""

from __future__ import annotations

from collections.abc import Sequence


def first_mark(text: str, marks: Sequence[str], start: int = 0) -> tuple[int, str] | None:
    """Where it begins, and which it is; of several that end together the longest.

    The one that ends first, not that begins first: so it does not depend on how the text is cut. `start`: characters
    that were looked at already.
    """
    found = [(text.find(mark, max(start - len(mark) + 1, 0)), mark) for mark in marks]
    hits = [(at + len(mark), at, mark) for at, mark in found if at >= 0]
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
