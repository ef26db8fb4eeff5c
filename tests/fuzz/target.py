"""A fuzz target: a parser that bytes from outside reach, what may escape from it, what must hold after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

One = Callable[[bytes], None]
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Target:
    """`open` is entered once; what it yields takes one input and raises when the parser does not keep its word.

    `slow_s`: one input may take so long, on a machine that does much else; `memory_mb`: the process may have so much.
    """

    name: str
    open: Callable[[], AbstractContextManager[One]]
    instrument: tuple[str, ...]
    slow_s: int = 60
    memory_mb: int = 1024

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name

    def inputs(self) -> list[bytes]:
        """What lies in the tree: seeds, and inputs that once failed."""
        return [file.read_bytes() for file in sorted(self.corpus.glob("*"))]


@contextmanager
def folder() -> Iterator[Path]:
    """For parsers that read files."""
    with TemporaryDirectory(prefix="aegaeon-fuzz-") as name:
        yield Path(name)
