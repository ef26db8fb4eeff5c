"""Engine time that admitted requests need: how much of the next seconds it takes to be on time.

A group needs its next step when its most urgent token is due, and one each TBT from then on for as long as a member
lives. That is not known: the share of a model's tokens so far that were the last one of an answer is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp

from aegaeon_scheduler.core.state import Model

_ASSUMED_TOKENS = 200.0  # of an answer, as if one had been seen of each model
_MOST_ALIVE = 8  # members beyond which one more hardly changes how long the last one lives


def answer_tokens(model: Model) -> float:
    """Tokens of an answer of this model, about: those that run now count as well."""
    return (model.output_tokens + _ASSUMED_TOKENS) / (model.ended + 1.0)


def lives(tokens: float, alive: int, due: float = 1e9) -> float:
    """Returns how many of `due` steps are expected before the last of `alive` members ends, after `tokens` each."""
    if due <= 0.0:
        return 0.0
    ended = power = 1.0 - exp(-due / tokens)
    steps = 0.0
    for i in range(1, min(alive, _MOST_ALIVE) + 1):
        steps += power / i
        power *= ended
    return min(due, tokens * steps)


@dataclass(frozen=True, slots=True)
class Need:
    """Engine time that a group needs. Seconds; `prompts_s` are those of its prompts, due within TTFT; `tokens` of an
    answer; `copies_s` on a link until it can run.
    """

    level: int
    step_s: float
    tbt_s: float
    slack_s: float
    alive: int
    tokens: float
    prompts_s: float
    copies_s: float = 0.0

    @property
    def util(self) -> float:
        """Share of an engine's time that its steps take in the long run."""
        return self.step_s / self.tbt_s

    def within(self, span_s: float) -> float:
        """Seconds of an engine."""
        return self.prompts_s + self.step_s * lives(self.tokens, self.alive, (span_s - self.slack_s) / self.tbt_s)


class Demand:
    """The needs of all groups as the last pass found them, and of what was admitted since."""

    def __init__(self) -> None:
        self._needs: list[Need] = []
        self._sums: dict[tuple[int, float], float] = {}  # by level and span: few objectives are asked for
        self._copies: dict[int, float] = {}

    def measure(self, needs: Iterable[Need]) -> None:
        """Begin anew."""
        self._needs = list(needs)
        self._sums, self._copies = {}, {}
        for need in self._needs:
            self._copy(need)

    def _copy(self, need: Need) -> None:
        self._copies[need.level] = self._copies.get(need.level, 0.0) + need.copies_s

    def add(self, need: Need) -> None:
        """One more is admitted."""
        self._needs.append(need)
        self._copy(need)
        for level, span_s in self._sums:
            if need.level <= level:
                self._sums[level, span_s] += need.within(span_s)

    def within(self, level: int, span_s: float) -> float:
        """Seconds of engines that groups of this tier and those above it need within this time."""
        key = (level, span_s)
        if key not in self._sums:
            self._sums[key] = sum(need.within(span_s) for need in self._needs if need.level <= level)
        return self._sums[key]

    def copies_s(self, level: int) -> float:
        """Seconds of links until all of this tier and those above it can run."""
        return sum(seconds for other, seconds in self._copies.items() if other <= level)
