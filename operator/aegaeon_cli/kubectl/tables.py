"""Tables as kubectl prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_GAP = 3


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Format rows: the first is the heading, in capitals; a column is as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, row in enumerate(rows):
        cells = [cell.upper() if place == 0 else cell for cell in row]
        yield (" " * _GAP).join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
