"""The position of one sequence in its grammar.

A guide is a function of the grammar and the output alone, so one that is made elsewhere, or after a crash, is the same
as soon as it has taken the output. It is made at once; tokens wait in it until its grammar's process has compiled.
"""

from __future__ import annotations

from concurrent.futures import Future
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aegaeon_sidecar.sampling.grammar_client import GrammarClient

_numbers = count(1)


class Guide:
    """`made`: the process that follows the grammar, shared by the grammar's sequences; an InvalidError where there is
    none. Owned by its sequence: when the last guide of a grammar is gone, so is what was being compiled for it."""

    __slots__ = ("__weakref__", "_behind", "_made", "number")

    def __init__(self, made: Future[GrammarClient]) -> None:
        self._made = made
        self._behind: list[int] = []
        self.number = next(_numbers)  # by which the process knows this sequence

    @property
    def ready(self) -> bool:
        """Its grammar is compiled, or cannot be."""
        return self._made.done()

    def accept(self, token: int) -> None:
        """The sequence keeps this token as its next output."""
        self._behind.append(token)

    def client(self) -> GrammarClient:
        """The client of the process that computes its masks; waits for it. Raises InvalidError when there is none."""
        return self._made.result()

    def behind(self) -> list[int]:
        """The tokens that were accepted since this was asked last: for the thread that computes masks."""
        behind, self._behind = self._behind, []
        return behind
