"""Detects models without progress, from the scheduler's state of open requests and engines' turns.

There are no synthetic requests: they would evict models or start engines. While no request is open, the conditions of
the attached engines and gateways apply.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from aegaeon_operator.reconcile.cluster.facts import EngineFacts, ModelFacts, SchedulerFacts, Wait

# Time without a step after which requests count as unanswered: a failover takes 7 s; loads and compilation take longer.
SILENT_S, SLOW_S = 9.0, 120.0
# Added to the time of the next check, which would otherwise come just before the limit. Many engines' limits in a row
# have one check.
MARGIN_S = 0.25


@dataclass(slots=True)
class ProgressMonitor:
    """The progress of one pool's models; a change of leader does not reset it. Times are seconds of one clock.

    `_since`: time of the last progress of each model with open requests; at the last check `_unable` of them could not
    be served and `_slow` waited for a load or for first steps. `_silent`: unanswered models, with the engine seconds
    they had used by then; `_stopped`: engine seconds of all models when no engine made progress. `_worked`: time of the
    last step.
    """

    _since: dict[str, float] = field(default_factory=dict)
    _unable: frozenset[str] = frozenset()
    _slow: frozenset[str] = frozenset()
    _silent: dict[str, float] = field(default_factory=dict)
    _stopped: float | None = None
    _worked: float = -math.inf
    _limits: tuple[float, ...] = ()
    _now: float = 0.0

    @property
    def again_in(self) -> float:
        """Seconds from the last check until the next model may count as unanswered or the next engine as stuck.

        On a busy machine a turn begins well after its request came, and is not too long yet at the request's limit.
        """
        began = [*self._since.values(), self._worked] if self._since else []
        ends = (*(at + SILENT_S for at in began), *self._limits)
        return min((at - self._now + MARGIN_S for at in ends if at > self._now), default=math.inf)

    def of(self, facts: SchedulerFacts, now: float) -> SchedulerFacts:
        """Return the facts with the unanswered models, stuck engines and the stopped pool marked."""
        self._now = now
        engines = [engine for engine in facts.engines if engine.attached]
        self._limits = tuple(now + _limit_s(engine) - engine.turn_s for engine in engines if engine.turn_of)
        stuck = tuple(sorted(engine.name for engine in engines if engine.turn_s >= _limit_s(engine)))
        if facts.worked_s is not None:
            self._worked = now - facts.worked_s
        moves = now - self._worked < SILENT_S or any(map(_moves, engines))
        self._look(facts, engines, bool(stuck))
        late = {name for name, began in self._since.items() if self._is_late(name, began) and (stuck or not moves)}
        self._remember(facts.models, late)
        total = sum(model.busy_s for model in facts.models.values())
        if late and not moves:
            self._stopped = total
        elif total != self._stopped or not self._silent:
            self._stopped = None
        silent = {name: replace(facts.models[name], unanswered=True) for name in self._silent}
        models = {**facts.models, **silent} if silent else facts.models
        return replace(facts, models=models, stuck=stuck, stopped=self._stopped is not None)

    def _look(self, facts: SchedulerFacts, engines: Collection[EngineFacts], stuck: bool) -> None:
        """Restart the time without progress when a model becomes servable and when its load begins or ends."""
        waiting = {name: wait for name, wait in facts.waiting.items() if name in facts.models}
        unable = frozenset(name for name in waiting if not engines or not _is_able(facts.models[name]))
        slow = frozenset(name for name in waiting if _is_prepared(name, engines, stuck))
        before, self._since = self._since, {}
        for name, wait in waiting.items():
            turned = name in unable or name in self._unable or (name in slow) != (name in self._slow)
            self._since[name] = self._now if turned else _began(wait, before.get(name), self._now)
        self._unable, self._slow = unable, slow

    def _is_late(self, name: str, began: float) -> bool:
        return self._now - began >= (SLOW_S if name in self._slow else SILENT_S)

    def _remember(self, models: Mapping[str, ModelFacts], late: Collection[str]) -> None:
        """Keep models as unanswered, even after their requests were cancelled, until a step is computed for them."""
        kept = {
            name: busy_s
            for name, busy_s in self._silent.items()
            if name in models and models[name].busy_s == busy_s and name not in self._unable
        }
        self._silent = kept | {name: models[name].busy_s for name in late}


def _began(wait: Wait, before: float | None, now: float) -> float:
    began = now - wait.oldest_s if before is None else before
    return began if wait.worked_s is None else max(began, now - wait.worked_s)


def _is_able(model: ModelFacts) -> bool:
    """Return whether an engine can start requests of a model; schedulers of older releases report no roles."""
    return model.phase == "cached" and not model.apart and model.roles != {"decode"}


def _is_prepared(name: str, engines: Collection[EngineFacts], stuck: bool) -> bool:
    """Return whether an engine loads a model or runs its first steps, or an idle one loads a model before it."""
    if any(name in engine.prepares and engine.turn_s < SLOW_S for engine in engines):
        return True
    return not stuck and any(engine.prepares and not engine.turn_of for engine in engines)


def _limit_s(engine: EngineFacts) -> float:
    return SLOW_S if engine.turn_of in engine.prepares else SILENT_S


def _moves(engine: EngineFacts) -> bool:
    """Return whether an engine runs a step that is within its time limit."""
    return bool(engine.turn_of) and engine.turn_s < _limit_s(engine)
