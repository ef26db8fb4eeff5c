"""Numbers with a unit that stand on a page by hand: none but what benchmarks/constants.toml says to be a constant."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from benchmarks.pages.fields import FIELD

CONSTANTS = Path(__file__).parents[1] / "constants.toml"
KINDS = {"setting", "bar", "definition", "cited", "foreign", "example", "estimate"}
_UNIT = (
    r"%|[nµum]?s|min|h|(?:second|minute|hour|day|week)s?|[kKMGT]i?B|bytes?|tokens?|requests?|switches|models|GPUs|outputs"
    r"|times|points|x"
)
NUMBER = re.compile(rf"(?<![\w.,:/#-])\d[\d,]*(?:\.\d+)?(?: ?(?:{_UNIT})(?:/s)?|/s)(?!\w)")
_UNREAD = re.compile(
    r"^```.*?^```|<!-- ([a-z0-9-]+): made by `make generate` -->.*?<!-- end of \1 -->", re.DOTALL | re.M
)
_ASIDE = re.compile(r"`[^`\n]*`|\]\([^)\n]*\)")
_MEASURED = {"measured", "instead, or the bar", "H200"}  # columns in which each number is a figure, whatever its unit
_SETTLED = {"bar", "limit"}  # columns of definitions


def typed(page: str, constants: Mapping[str, list[str]]) -> Iterator[tuple[int, str]]:
    """Line and text of each number that is neither a field nor a constant; line 0: constants that are not there."""
    known = {text for texts in constants.values() for text in texts}
    used = set()
    for line, text in _numbers(page):
        used.add(text)
        if text not in known:
            yield line, text
    yield from ((0, text) for text in sorted(known - used))


def constants_of(page: str) -> Mapping[str, list[str]]:
    """Those of this page, by kind."""
    named: dict[str, list[str]] = tomllib.loads(CONSTANTS.read_text("utf-8")).get(page, {})
    if unknown := set(named) - KINDS:
        raise ValueError(f"{CONSTANTS.name}, {page}: no such kind: {', '.join(sorted(unknown))}")
    return named


def _numbers(page: str) -> Iterator[tuple[int, str]]:
    hidden = _UNREAD.sub(lambda match: "\n" * match[0].count("\n"), page)
    lines = [_ASIDE.sub("`", FIELD.sub("<>", line)) for line in hidden.splitlines()]
    head: list[str] = []
    for number, (text, after) in enumerate(pairwise([*lines, ""]), 1):
        if not text.startswith("|"):
            head = []
            wrapped = f"{text} {after.split()[0]}" if after.strip() and text[-1:].isdigit() else text
            yield from ((number, match[0]) for match in NUMBER.finditer(wrapped))
            continue
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        head = head or cells
        for column, cell in zip(head, cells, strict=False):
            if column in _SETTLED:
                continue
            pattern = re.compile(r"(?<![\w.])\d[\d,.]*") if column in _MEASURED else NUMBER
            yield from ((number, match[0]) for match in pattern.finditer(cell))
