"""The length of an output's reasoning, and the token that ends it when a budget is used up.

A function of the output alone: rebuilt elsewhere from the same tokens it forces the same ones.
"""

from __future__ import annotations

from collections import deque

from aegaeon_proto.engine.sampling import ReasoningBudget


class Reasoning:
    """The state of one output under a budget."""

    __slots__ = ("_budget", "_inside", "_recent", "_spent")

    def __init__(self, budget: ReasoningBudget) -> None:
        self._budget = budget
        self._inside = budget.inside
        self._spent = 0
        longest = max(len(budget.opening.tokens), len(budget.closing.tokens))
        self._recent: deque[int] = deque(maxlen=longest)

    def accept(self, token: int) -> None:
        """The output goes on with this token."""
        self._recent.append(token)
        self._spent += self._inside
        mark = self._budget.closing.tokens if self._inside else self._budget.opening.tokens
        if mark and tuple(self._recent)[-len(mark) :] == mark:
            self._inside = not self._inside

    @property
    def forced(self) -> int | None:
        """The next forced token after the budget is used up: the first token of the end mark that is still missing."""
        if not self._inside or self._spent < self._budget.tokens:
            return None
        recent, closing = tuple(self._recent), self._budget.closing.tokens
        matched = max(
            (count for count in range(1, len(closing)) if recent[-count:] == closing[:count]),
            default=0,
        )
        return closing[matched]
