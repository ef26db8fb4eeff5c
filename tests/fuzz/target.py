"""A fuzz target: a parser that bytes from outside reach, what may escape from it, what must hold after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

One = Callable[[bytes], None]
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Target:
    """`open` is called once, with a folder for parsers that read files; what it returns takes one input and raises when
    the parser does not keep its word.

    `slow_s`: one input may take so long, on a machine that does much else; `memory_mb`: the process may have so much.
    """

    name: str
    open: Callable[[Path], One]
    instrument: tuple[str, ...]
    slow_s: int = 60
    memory_mb: int = 1024

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name

    def inputs(self) -> list[bytes]:
        """What lies in the tree: seeds, and inputs that once failed."""
        return [file.read_bytes() for file in sorted(self.corpus.glob("*"))]
