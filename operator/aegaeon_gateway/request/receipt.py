"""Parts of a request that have no effect: named to its client in a header, to operators in a counter and the debug log.

Both have bounds: names are a stranger's, so that a header has a largest size, and a counter a fixed set of labels.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator

HEADER = "x-aegaeon-ignored"
MAX_HEADER_BYTES = 1024
MAX_ENTRIES = 64
MAX_ENTRY_CHARACTERS = 96
OTHER = "other"
"""the label of whatever is not of the tables"""
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\[\]/ -]")
_INDEX = re.compile(r"\[\d*\]")


class Receipt:
    """Collects the parts of one request that are ignored, in their order, each once."""

    def __init__(self) -> None:
        self._entries: dict[str, None] = {}

    def ignore(self, path: str, kind: str = "") -> None:
        """`path`: the field, as errors name it; `kind`: of what there are several of, such as tools."""
        if not self.full:
            entry = f"{path} {kind}" if kind else path
            self._entries[_UNSAFE.sub("?", entry[:MAX_ENTRY_CHARACTERS])] = None

    @property
    def full(self) -> bool:
        """Nothing more is said."""
        return len(self._entries) >= MAX_ENTRIES

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(self._entries)


def header_of(entries: Iterable[str]) -> str:
    """The value of the header, MAX_HEADER_BYTES at most: what does not fit is counted. Entries may be anybody's."""
    safe = [_UNSAFE.sub("?", entry[:MAX_ENTRY_CHARACTERS]) for entry in entries]
    shown, size = 0, len(", and 999999 more")
    for entry in safe:
        size += len(entry) + 2
        if size > MAX_HEADER_BYTES:
            break
        shown += 1
    rest = len(safe) - shown
    return ", ".join([*safe[:shown], *([f"and {rest} more"] if rest else [])])


def labels_of(entries: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """The counter's label of each: its field without places, or OTHER if that is not in `known`."""
    for entry in entries:
        field = _INDEX.sub("", entry.partition(" ")[0])
        yield field if field in known else OTHER
