"""Sliding windows over a scheduler's counters: values of the last ten minutes from counts since its start.

A ratio of counters hides a bad hour after weeks, and depends on a few tokens just after the start. The window is that
of the alert `AegaeonTokensLate`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from aegaeon_operator.reconcile.cluster.facts import ModelFacts, SchedulerFacts

WINDOW_S = 600.0
# Minimum number of tokens: below it loads and first steps dominate the measurement.
ENOUGH_TOKENS = 100
_STEP_S = 30.0
_STEPS = int(WINDOW_S / _STEP_S)


def attainment(facts: ModelFacts) -> int | None:
    """Return the percentage of a model's tokens on time; None: too few tokens."""
    tokens = facts.output_tokens
    return min(100 * facts.tokens_on_time // tokens, 100) if tokens >= ENOUGH_TOKENS else None


@dataclass(frozen=True, slots=True)
class _Counted:
    """Tokens, tokens on time and engine seconds since the operator first observed the model."""

    tokens: int = 0
    on_time: int = 0
    busy_s: float = 0.0

    def since(self, before: _Counted) -> _Counted:
        """Return the difference to earlier counts."""
        return _Counted(self.tokens - before.tokens, self.on_time - before.on_time, self.busy_s - before.busy_s)

    def plus(self, more: _Counted) -> _Counted:
        """Return the sum of both."""
        return _Counted(self.tokens + more.tokens, self.on_time + more.on_time, self.busy_s + more.busy_s)


@dataclass(slots=True)
class _Model:
    """Counts of a model. `reported`: the scheduler's; `before`: total at the window's begin. `steps`: total at the end
    of each time step in the window in which it changed, with the number of the step."""

    reported: _Counted
    total: _Counted = field(default_factory=_Counted)
    before: _Counted = field(default_factory=_Counted)
    steps: deque[tuple[int, _Counted]] = field(default_factory=deque)
    token_s: float = 0.0
    last: tuple[ModelFacts, ModelFacts] | None = None
    """the last facts, as reported and in the window"""

    def unchanged(self, facts: ModelFacts, step: int) -> ModelFacts | None:
        """Return the last facts in the window if the same were reported and nothing leaves the window; else None."""
        leaves = self.steps and self.steps[0][0] <= step - _STEPS
        return self.last[1] if self.last and self.last[0] is facts and not leaves else None

    def count(self, reported: _Counted, same_scheduler: bool, step: int) -> _Counted:
        """Add the counts that a scheduler reports; return the counts in the window."""
        if same_scheduler and reported.tokens >= self.reported.tokens and reported != self.reported:
            self.total = self.total.plus(reported.since(self.reported))
            if self.steps and self.steps[-1][0] == step:
                self.steps.pop()
            self.steps.append((step, self.total))
        self.reported = reported
        while self.steps and self.steps[0][0] <= step - _STEPS:
            self.before = self.steps.popleft()[1]
        return self.total.since(self.before)


@dataclass(slots=True)
class Windows:
    """The windows of one pool; they continue when another scheduler starts counting from zero."""

    _incarnation: str = ""
    _models: dict[str, _Model] = field(default_factory=dict)

    def of(self, facts: SchedulerFacts, now: float) -> SchedulerFacts:
        """Return the facts with tokens and seconds of the last ten minutes; `now` in seconds of one clock."""
        same_scheduler, self._incarnation = facts.incarnation == self._incarnation, facts.incarnation
        self._models = {name: self._models[name] for name in facts.models if name in self._models}
        step = int(now // _STEP_S)
        return replace(
            facts,
            models={name: self._within(name, model, same_scheduler, step) for name, model in facts.models.items()},
        )

    def _within(self, name: str, facts: ModelFacts, same_scheduler: bool, step: int) -> ModelFacts:
        if (known := self._models.get(name)) and (unchanged := known.unchanged(facts, step)):
            return unchanged
        reported = _Counted(facts.output_tokens, facts.tokens_on_time, facts.busy_s)
        model = known or self._models.setdefault(name, _Model(reported))
        window = model.count(reported, same_scheduler, step)
        if window.tokens >= ENOUGH_TOKENS:
            model.token_s = window.busy_s / window.tokens
        within = replace(
            facts,
            output_tokens=window.tokens,
            tokens_on_time=window.on_time,
            busy_s=window.busy_s,
            token_s=model.token_s,
        )
        model.last = (facts, within)
        return within
