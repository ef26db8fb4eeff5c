"""Find private vocabulary in documentation and code that should use the field's terms."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Word:
    """A banned expression and the term to use for it."""

    pattern: re.Pattern[str]
    term: str


def entries(path: Path) -> Iterator[str]:
    """Yield the lines of a list that are neither empty nor comments."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def words(path: Path) -> list[Word]:
    """Read the banned expressions; raise ValueError for a line without a term."""
    pairs = (line.split(" => ", 1) for line in entries(path))
    return [Word(re.compile(pattern, re.IGNORECASE), term) for pattern, term in pairs]


def hits(name: str, text: str, banned: list[Word]) -> Iterator[str]:
    """Yield `file:line: word -> term` for each banned expression in a text."""
    for number, line in enumerate(text.splitlines(), 1):
        for word in banned:
            for match in word.pattern.finditer(line):
                yield f"{name}:{number}: {match.group()} -> {word.term}"
