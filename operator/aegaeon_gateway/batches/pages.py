"""Ids that sort by the time at which they were made, and the pages of lists of them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

_DIGITS = 32
_TIME_DIGITS = 11  # milliseconds


def new_id(prefix: str, now: float) -> str:
    """`now`: unix seconds."""
    return f"{prefix}{int(now * 1000):0{_TIME_DIGITS}x}{uuid.uuid4().hex[: _DIGITS - _TIME_DIGITS]}"


@dataclass(frozen=True, slots=True)
class Cursor:
    """Which part of a list: at most `limit` of those that come `after` an id (empty: from the first on)."""

    limit: int
    after: str = ""
    newest_first: bool = True


def page(ids: Sequence[str], cursor: Cursor) -> tuple[list[str], bool]:
    """The ids of a page, and whether there are more behind it."""
    ordered = in_order(ids, cursor)
    return ordered[: cursor.limit], len(ordered) > cursor.limit


def in_order(ids: Sequence[str], cursor: Cursor) -> list[str]:
    """All ids from the page's first one on."""
    ordered = sorted(ids, reverse=cursor.newest_first)
    if cursor.after:
        return [id_ for id_ in ordered if (id_ < cursor.after if cursor.newest_first else id_ > cursor.after)]
    return ordered
