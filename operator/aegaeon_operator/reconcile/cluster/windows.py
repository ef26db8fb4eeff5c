"""Levels from counters: what a scheduler has counted since its start becomes what was so in the last ten minutes.

A bad hour changes nothing of a quotient of counters that run for weeks, and a few tokens all of one that began a moment
ago. The window is that of the alert `AegaeonTokensLate`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from aegaeon_operator.reconcile.cluster.facts import ModelFacts, SchedulerFacts

WINDOW_S = 600.0
# Before so many tokens nothing is said: loads and first steps are most of what was measured.
ENOUGH_TOKENS = 100
_STEP_S = 30.0
_STEPS = int(WINDOW_S / _STEP_S)


def attainment(facts: ModelFacts) -> int | None:
    """Percent of a model's tokens that were on time; None: they are too few to tell."""
    tokens = facts.output_tokens
    return min(100 * facts.tokens_on_time // tokens, 100) if tokens >= ENOUGH_TOKENS else None


@dataclass(frozen=True, slots=True)
class _Counted:
    """Tokens, those of them on time, seconds of engines: since the operator heard of the model first."""

    tokens: int = 0
    on_time: int = 0
    busy_s: float = 0.0

    def since(self, before: _Counted) -> _Counted:
        """What has come since."""
        return _Counted(self.tokens - before.tokens, self.on_time - before.on_time, self.busy_s - before.busy_s)

    def plus(self, more: _Counted) -> _Counted:
        """Both together."""
        return _Counted(self.tokens + more.tokens, self.on_time + more.on_time, self.busy_s + more.busy_s)


@dataclass(slots=True)
class _Model:
    """`before`: the total at the window's begin. `steps`: the total at the end of each step of time in it in which that
    changed, by the step's number."""

    said: _Counted
    total: _Counted = field(default_factory=_Counted)
    before: _Counted = field(default_factory=_Counted)
    steps: deque[tuple[int, _Counted]] = field(default_factory=deque)
    token_s: float = 0.0

    def count(self, said: _Counted, goes_on: bool, step: int) -> _Counted:
        """Take in what a scheduler says, the same one as before or another; what is in the window."""
        if goes_on and said.tokens >= self.said.tokens and said != self.said:
            self.total = self.total.plus(said.since(self.said))
            if self.steps and self.steps[-1][0] == step:
                self.steps.pop()
            self.steps.append((step, self.total))
        self.said = said
        while self.steps and self.steps[0][0] <= step - _STEPS:
            self.before = self.steps.popleft()[1]
        return self.total.since(self.before)


@dataclass(slots=True)
class Windows:
    """Of one pool. Counters of another scheduler begin anew, and the window goes on."""

    _incarnation: str = ""
    _models: dict[str, _Model] = field(default_factory=dict)

    def of(self, facts: SchedulerFacts, now: float) -> SchedulerFacts:
        """The same facts with tokens and seconds of the last ten minutes; `now` in seconds of one clock."""
        goes_on, self._incarnation = facts.incarnation == self._incarnation, facts.incarnation
        self._models = {name: self._models[name] for name in facts.models if name in self._models}
        step = int(now // _STEP_S)
        return replace(
            facts, models={name: self._within(name, one, goes_on, step) for name, one in facts.models.items()}
        )

    def _within(self, name: str, facts: ModelFacts, goes_on: bool, step: int) -> ModelFacts:
        said = _Counted(facts.output_tokens, facts.tokens_on_time, facts.busy_s)
        model = self._models.setdefault(name, _Model(said))
        found = model.count(said, goes_on, step)
        if found.tokens >= ENOUGH_TOKENS:
            model.token_s = found.busy_s / found.tokens
        return replace(
            facts,
            output_tokens=found.tokens,
            tokens_on_time=found.on_time,
            busy_s=found.busy_s,
            token_s=model.token_s,
        )
