"""Fills the fields and blocks of the pages, and lists the numbers with a unit that are neither: `python -m
benchmarks.pages`. Part of `make generate`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.conditions import ROOT
from benchmarks.pages import blocks
from benchmarks.pages.fields import FIELD, FieldError, Fields
from benchmarks.pages.records import Records
from benchmarks.pages.typed import constants_of, typed

_BEGINS_A_LINE = re.compile(rf"^[ ]*(?:[-*>] +|\d+\. +)?{FIELD.pattern}", re.MULTILINE)
FILLED = ("docs/engine-memory.md",)  # its block alone: the numbers in its text are not checked
PAGES = ("README.md", "docs/measured.md", "docs/gpu*.md", "docs/guides/*.md")


def pages(patterns: tuple[str, ...] = PAGES, root: Path = ROOT) -> Iterator[Path]:
    """Those whose figures are made."""
    return (file for pattern in patterns for file in sorted(root.glob(pattern)))


def filled(page: str, fields: Fields) -> str:
    """The page with its fields and blocks as the records have them. Raises FieldError."""
    if begun := _BEGINS_A_LINE.search(page):
        raise FieldError(f"{begun[0].strip()} begins a line, of which markdown makes a block: put a word before it")
    page = FIELD.sub(lambda match: _field(match, fields), page)
    if any(fields.rows_of(file, name) for file, name, *_ in FIELD.findall(page)) and not blocks.has(page, "older"):
        raise FieldError("has fields, but no block `older` that says which are older than what they measure")
    return blocks.BLOCK.sub(lambda match: match[1] + _block(match, page, fields) + match[4], page)


def _block(match: re.Match[str], page: str, fields: Fields) -> str:
    lines = blocks.lines_of(match[2], page, fields)
    return match[3] if lines is None else lines


def _field(match: re.Match[str], fields: Fields) -> str:
    head, _, _ = match[0].partition("-->")
    return f"{head}-->{fields.text(match[1], match[2], match[3])}<!--/-->"


def main() -> int:
    """Write the pages; 1 when a number is typed on one of them."""
    fields, wrong = Fields(Records(ROOT)), []
    for file in pages(PAGES + FILLED):
        name = file.relative_to(ROOT).as_posix()
        page = file.read_text("utf-8")
        try:
            file.write_text(filled(page, fields), "utf-8")
        except FieldError as error:
            wrong.append(f"{name}: {error}")
        for line, text in [] if name in FILLED else typed(page, constants_of(name)):
            wrong.append(
                f"{name}:{line}: `{text}` is typed: make it a field (docs/reference/figures.md) or say in "
                f"benchmarks/constants.toml what it is"
                if line
                else f"benchmarks/constants.toml: `{text}` is not on {name}"
            )
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
