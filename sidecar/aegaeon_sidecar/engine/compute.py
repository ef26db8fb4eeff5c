"""The compute lane: its loop over a turn's steps, from token boundary to token boundary, and its clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from aegaeon_proto.engine.commands import Load
from aegaeon_proto.engine.reports import TurnProgress
from aegaeon_sidecar.domain.errors import CancelledError, UnknownError
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.running_turn import ChunkLimits, RunningTurn
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.engine.step import Step
from aegaeon_sidecar.engine.steps import Steps
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.engine.warm_up import WarmUp
from aegaeon_sidecar.kv.reuse import PrefixReuse
from aegaeon_sidecar.weights.deaths import Deaths
from aegaeon_sidecar.weights.models import Model

PostStep = Callable[[Queued, TurnProgress], None]


class Compute:
    """Runs turns on the compute lane's thread."""

    def __init__(
        self,
        state: State,
        steps: Steps,
        warm_up: WarmUp,
        post: PostStep,
        reuse: PrefixReuse,
        limits: ChunkLimits,
        deaths: Deaths,
    ) -> None:
        self._state = state
        self._steps = steps
        self._warm_up = warm_up
        self._post = post
        self._limits = limits
        self._reuse = reuse
        self._deaths = deaths
        self._free_since_s = time.monotonic()
        self._boundary_s = 0.0  # from which the time of the step that ends next is counted

    def turn(self, command: Queued, turn: Turn) -> Outcome:
        """Carry a turn out; reports itself by TurnProgress. Raises UnknownError, CancelledError, EngineError."""
        now, progress, well = time.monotonic(), turn.progress, False
        progress.last_s, progress.wait_s = now, now - max(self._free_since_s, command.issued_s)
        try:
            self._run(command, turn)
            well = not command.cancelled
        finally:
            self._steps.drain()
            self._reuse.finish()
            self._free_since_s = time.monotonic()
            if well or progress.steps or progress.prefill_tokens or progress.urgent:
                self._report(command, turn, end=well)
        if not well:
            raise CancelledError(f"the turn of {turn.model} was cancelled")
        return Outcome(silent=True)

    def _run(self, command: Queued, turn: Turn) -> None:
        """Run the steps of a turn once its model is resident."""
        model = self._await_model(command, turn)
        if model is None:
            return
        with self._deaths.computing(model.name):
            if turn.warm_up:
                self._warm_up.run(turn, model)
            else:
                parts = self._state, self._steps, self._reuse, self._limits
                self._compute(RunningTurn(*parts, command, turn, model))

    def _await_model(self, command: Queued, turn: Turn) -> Model | None:
        """None where the turn is ended before. Raises UnknownError."""
        with self._state.monitor.changed:
            while not turn.ended:
                model = self._state.table.models.get(turn.model)
                if model is not None and model.resident:
                    return model
                if not self._is_coming(command, turn.model):
                    raise UnknownError(f"model {turn.model} is not resident and no Load of it is under way")
                if not self._sleep(command, turn):
                    break
        return None

    def _is_coming(self, command: Queued, model: str) -> bool:
        return self._state.program.ends_before(
            command.id, Lane.WEIGHTS, lambda body: isinstance(body, Load) and body.model == model
        )

    def _compute(self, running: RunningTurn) -> None:
        """Compute until no step is left to launch or in flight."""
        self._boundary_s = time.perf_counter()
        while (step := self._next(running)) or len(self._steps) or self._reuse.pending:
            if step is not None:
                self._steps.launch(step)
                if not self._steps.full:
                    continue
            if len(self._steps):
                self._complete(running)
            else:
                self._reuse.wait()
                self._boundary_s = time.perf_counter()

    def _next(self, running: RunningTurn) -> Step | None:
        """Sleeps while all that is left of the turn waits for other lanes."""
        with self._state.monitor.changed:
            while (step := running.next()) is None and running.waits():
                self._sleep(running.command, running.turn)
            return step

    def _sleep(self, command: Queued, turn: Turn) -> bool:
        """Wait until something changes (lock held); False when the turn was cancelled or the engine stops."""
        start = time.monotonic()
        goes_on = self._state.monitor.sleep(command)
        turn.progress.wait_s += time.monotonic() - start
        self._boundary_s = time.perf_counter()
        return goes_on

    def _complete(self, running: RunningTurn) -> None:
        """The oldest step ends: its tokens go out, its time is counted from the boundary before it."""
        step = self._steps.complete()
        now = time.perf_counter()
        step.count(now - self._boundary_s)
        self._boundary_s = now
        if running.turn.progress.due(time.monotonic()):
            self._report(running.command, running.turn, end=False)

    def _report(self, command: Queued, turn: Turn, end: bool) -> None:
        with self._state.monitor.changed:
            self._post(
                command, turn.progress.flush(self._state.program.instance, time.monotonic(), self._state.memory(), end)
            )
