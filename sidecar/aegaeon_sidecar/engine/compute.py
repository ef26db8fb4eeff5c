"""The compute lane: a turn is prefill parts, then decode steps, one token boundary after the other.

At each boundary it decides anew who runs (Paper section 4: token-level scheduling), so that amendments, arrivals of KV
cache and closes take effect there and nowhere else. On a GPU the next step is launched before the tokens of the last
one are known (steps.py), so they take effect one step later.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from aegaeon_native import OutOfSlabs
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.domain.errors import CancelledError, UnknownError
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.progress import TurnProgress
from aegaeon_sidecar.engine.state import Command, State
from aegaeon_sidecar.engine.steps import Step, Steps
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.engine.waiting import kv_is_coming, model_is_coming
from aegaeon_sidecar.kv.reuse import PrefixReuse
from aegaeon_sidecar.kv.sequences import Place, SeqKey, Sequence
from aegaeon_sidecar.weights.models import Model

PostStep = Callable[[Command, pb.StepDone], None]


class Compute:
    """Runs turns on the compute lane's thread."""

    def __init__(
        self,
        state: State,
        steps: Steps,
        post: PostStep,
        reuse: PrefixReuse,
        chunk_tokens: int,
    ) -> None:
        self._state = state
        self._steps = steps
        self._post = post
        self._chunk_tokens = chunk_tokens
        self._reuse = reuse
        self._free_since_s = time.monotonic()
        self._boundary_s = 0.0

    def turn(self, command: Command, plan: Turn) -> Outcome:
        """Carry a turn out; reports itself by StepDone. Raises UnknownError, CancelledError, EngineError."""
        now = time.monotonic()
        progress = TurnProgress(command.id, now, wait_s=now - max(self._free_since_s, command.issued_s))
        well = False
        try:
            self._run(command, plan, progress)
            well = not command.cancelled
        finally:
            self._steps.drain(plan, progress)
            self._reuse.finish()
            self._free_since_s = time.monotonic()
            if well or progress.steps or progress.prefill_tokens or progress.urgent:
                self._report(command, progress, end=well)
        if not well:
            raise CancelledError(f"the turn of {plan.model} was cancelled")
        return Outcome(silent=True)

    def _run(self, command: Command, plan: Turn, progress: TurnProgress) -> None:
        """From boundary to boundary: launch a step, then hear of the one before it, which the device has just ended."""
        model = self._await_model(command, plan, progress)
        self._boundary_s = time.perf_counter()
        while model is not None:
            with self._state.monitor.changed:
                step = self._next(command, plan, model, progress)
                going = step is not None or (self._reuse.pending and not self._is_over(command, plan, model))
            if step is not None:
                self._steps.launch(step)
            if self._steps.full or (step is None and len(self._steps)):
                self._settle(command, plan, progress)
            elif not going:
                return
            elif step is None:
                self._reuse.wait()
                self._boundary_s = time.perf_counter()

    def _await_model(self, command: Command, plan: Turn, progress: TurnProgress) -> Model | None:
        start = time.monotonic()
        with self._state.monitor.changed:
            while not plan.ended:
                model = self._state.table.models.get(plan.model)
                if model is not None and model.resident:
                    progress.wait_s += time.monotonic() - start
                    return model
                if not model_is_coming(self._state, command, plan.model):
                    raise UnknownError(f"model {plan.model} is not resident and no Load of it is under way")
                if not self._state.monitor.sleep(command):
                    break
        return None

    def _next(self, command: Command, plan: Turn, model: Model, progress: TurnProgress) -> Step | None:
        """Who runs now (lock held); sleeps while all that is left is still coming; None at the turn's end.

        While a step is under way: who runs behind it, None when that cannot be said before its tokens are known.
        """
        if len(self._steps):
            if self._steps.full or plan.prefill or self._reuse.pending or self._is_over(command, plan, model):
                return None
            return self._decode_step(plan, model, progress)
        while not self._is_over(command, plan, model):
            self._reuse.settle()
            step = self._prefill_step(command, plan, model, progress) or self._decode_step(plan, model, progress)
            if step is not None:
                return step
            if self._reuse.pending or not any(kv_is_coming(self._state, command, key) for key in plan.waiting()):
                return None
            start = time.monotonic()
            self._state.monitor.sleep(command)
            progress.wait_s += time.monotonic() - start
            self._boundary_s = time.perf_counter()
        return None

    def _is_over(self, command: Command, plan: Turn, model: Model) -> bool:
        return plan.ended or command.cancelled or self._state.monitor.stopping or not model.usable

    def _prefill_step(self, command: Command, plan: Turn, model: Model, progress: TurnProgress) -> Step | None:
        for part in list(plan.prefill):
            sequence = self._here(part.key, model)
            if sequence is not None and sequence.place is Place.NONE and kv_is_coming(self._state, command, part.key):
                continue
            if sequence is None or sequence.place is Place.HOST:
                continue
            if sequence.place is Place.NONE:
                sequence.token_s = model.token_s
                self._reuse.begin(sequence, plan)
            if sequence.moving:
                continue
            tokens = min(part.left, self._chunk_tokens, sequence.length - sequence.kv_tokens)
            if tokens <= 0:
                plan.prefill.remove(part)
            elif self._grow(sequence, tokens, plan):
                part.left -= tokens
                if sequence.kv_tokens + tokens == sequence.length:
                    part.left = 0
                return self._claimed(Step(model, [sequence], tokens, prefill=True))
            else:
                plan.drop(part.key)
                progress.note(sequence, starved=True)
        return None

    def _decode_step(self, plan: Turn, model: Model, progress: TurnProgress) -> Step | None:
        if not plan.decoding:
            return None
        batch = []
        for key in list(plan.decode):
            sequence = self._here(key, model)
            if sequence is None or not _has_next(sequence):
                continue
            if self._grow(sequence, sequence.busy + 1, plan):
                batch.append(sequence)
            elif not sequence.busy:  # else it is told when its step is over
                plan.drop(key)
                progress.note(sequence, starved=True)
        if not batch:
            return None
        plan.begun += 1
        return self._claimed(Step(model, batch, 1))

    def _claimed(self, step: Step) -> Step:
        self._steps.claim(step)
        return step

    def _here(self, key: SeqKey, model: Model) -> Sequence | None:
        """The sequence if it is this model's and no copy touches or wants it."""
        sequence = self._state.kv.sequences.get(key)
        if sequence is None or sequence.model != model.name or sequence.moving or sequence.wanted:
            return None
        return sequence

    def _grow(self, sequence: Sequence, tokens: int, plan: Turn) -> bool:
        """Blocks for `tokens` more; False when the grant is used up."""
        needed = -(-(sequence.kv_tokens + tokens) // sequence.block_tokens) - sequence.blocks.size
        if needed > 0:
            pool = self._state.kv.device.blocks(sequence.kv_shape)
            before = pool.held_slabs
            try:
                fresh = self._state.kv.device.allocate(sequence.kv_shape, needed, plan.grant)
            except OutOfSlabs:
                return False
            plan.grant -= pool.held_slabs - before
            sequence.blocks = np.concatenate((sequence.blocks, fresh))
        sequence.place = Place.DEVICE
        return True

    def _settle(self, command: Command, plan: Turn, progress: TurnProgress) -> None:
        """The oldest step is over: its tokens are told, its time is counted from the boundary before it."""
        step = self._steps.settle(plan, progress)
        now = time.perf_counter()
        self._count(step, progress, now - self._boundary_s)
        self._boundary_s = now
        if progress.due(time.monotonic()):
            self._report(command, progress, end=False)

    def _count(self, step: Step, progress: TurnProgress, seconds: float) -> None:
        if step.prefill:
            progress.prefill_tokens += step.tokens
            progress.prefill_s += seconds
            step.model.token_s = progress.prefill_s / progress.prefill_tokens
            return
        progress.steps += 1
        progress.decode_s += seconds
        progress.batch = len(step.sequences)
        progress.context_tokens = sum(sequence.kv_tokens for sequence in step.sequences)

    def _report(self, command: Command, progress: TurnProgress, end: bool) -> None:
        self._post(command, progress.flush(time.monotonic(), self._state.memory(), end))


def _has_next(sequence: Sequence) -> bool:
    """All but its last token have their KV in, or will when the step under way is over; and that is not its last."""
    if sequence.place is not Place.DEVICE or sequence.kv_tokens != sequence.length - 1:
        return False
    return not sequence.busy or len(sequence.output) + sequence.busy < sequence.max_output
