"""Where one sequence is in its grammar.

A guide is a function of the grammar and the output alone, so one that is made elsewhere, or after a crash, is the same
as soon as it has taken the output. It is made at once, and its matcher in another thread; tokens wait for it meanwhile.
"""

from __future__ import annotations

from concurrent.futures import Future

from llguidance import LLMatcher

from aegaeon_sidecar.domain.errors import InvalidError


class Guide:
    """`made`: the grammar's matcher before any token, shared by its sequences; an InvalidError where there is none.

    Owned by its sequence. `accept` costs nothing; `matcher` catches up, which is for the thread that computes masks.
    """

    __slots__ = ("_behind", "_made", "_mine")

    def __init__(self, made: Future[LLMatcher]) -> None:
        self._made = made
        self._mine: LLMatcher | None = None
        self._behind: list[int] = []

    @property
    def ready(self) -> bool:
        """Its grammar is compiled, or cannot be."""
        return self._made.done()

    def accept(self, token: int) -> None:
        """The sequence keeps this token as its next output."""
        self._behind.append(token)

    def matcher(self) -> LLMatcher:
        """The matcher after all accepted tokens. Raises InvalidError when there is none or it has failed."""
        if self._mine is None:
            self._mine = self._made.result().deep_copy()
        behind, self._behind = self._behind, []
        self._mine.consume_tokens(behind)
        check(self._mine)
        return self._mine


def check(matcher: LLMatcher) -> None:
    """Raises InvalidError when the matcher has failed: what it allows then means nothing."""
    if matcher.is_error():
        raise InvalidError(f"the constraint cannot be followed: {' '.join(matcher.get_error().split())[:500]}")
