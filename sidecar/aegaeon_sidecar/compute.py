"""The compute lane: a turn is prefill parts, then decode steps, one token boundary after the other.

At each boundary it decides anew who runs (Paper section 4: token-level scheduling), so that amendments, arrivals of KV
cache and closes take effect there and nowhere else. Backend.step is the only call into model execution.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aegaeon_native import OutOfSlabs
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import gateway_pb2 as gateway
from aegaeon_proto.v1 import model_pb2 as model_pb
from aegaeon_sidecar.backends import Backend, Sampled, StepInput
from aegaeon_sidecar.errors import CancelledError, EngineError, SidecarError, UnknownError
from aegaeon_sidecar.kv.reuse import PrefixReuse
from aegaeon_sidecar.outcome import Outcome
from aegaeon_sidecar.plan import TurnPlan
from aegaeon_sidecar.progress import TurnProgress
from aegaeon_sidecar.sequences import Place, SeqKey, Sequence
from aegaeon_sidecar.state import Command, State
from aegaeon_sidecar.waiting import kv_is_coming, model_is_coming
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.wire import token_of

PushTokens = Callable[[str, list[gateway.Token]], None]
PostStep = Callable[[Command, pb.StepDone], None]


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: who takes part and how many tokens each (a chunk at prefill, one at decode)."""

    model: Model
    sequences: list[Sequence]
    tokens: int
    prefill: bool = False


class Compute:
    """Runs turns on the compute lane's thread."""

    def __init__(
        self,
        state: State,
        backend: Backend,
        push: PushTokens,
        post: PostStep,
        reuse: PrefixReuse,
        chunk_tokens: int,
        max_batch: int,
    ) -> None:
        self._state = state
        self._backend = backend
        self._push = push
        self._post = post
        self._chunk_tokens = chunk_tokens
        self._max_batch = max_batch
        self._reuse = reuse
        self._free_since_s = time.monotonic()

    def turn(self, command: Command, plan: TurnPlan) -> Outcome:
        """Carry a turn out; reports itself by StepDone. Raises UnknownError, CancelledError, EngineError."""
        now = time.monotonic()
        progress = TurnProgress(command.id, now, wait_s=now - max(self._free_since_s, command.issued_s))
        well = False
        try:
            self._steps(command, plan, progress)
            well = not command.cancelled
        finally:
            self._reuse.finish()
            self._free_since_s = time.monotonic()
            if well or progress.steps or progress.prefill_tokens or progress.urgent:
                self._report(command, progress, end=well)
        if not well:
            raise CancelledError(f"the turn of {plan.model} was cancelled")
        return Outcome(silent=True)

    def _steps(self, command: Command, plan: TurnPlan, progress: TurnProgress) -> None:
        model = self._await_model(command, plan, progress)
        while model is not None:
            start = time.perf_counter()
            with self._state.changed:
                step = self._next(command, plan, model, progress)
                going = step is not None or (self._reuse.pending and not self._is_over(command, plan, model))
            if not going:
                return
            if step is None:
                self._reuse.wait()
                continue
            self._run(step, plan, progress)
            self._count(step, plan, progress, time.perf_counter() - start)
            if progress.due(time.monotonic()):
                self._report(command, progress, end=False)

    def _await_model(self, command: Command, plan: TurnPlan, progress: TurnProgress) -> Model | None:
        start = time.monotonic()
        with self._state.changed:
            while not plan.ended:
                model = self._state.models.get(plan.model)
                if model is not None and model.resident:
                    progress.wait_s += time.monotonic() - start
                    return model
                if not model_is_coming(self._state, command, plan.model):
                    raise UnknownError(f"model {plan.model} is not resident and no Load of it is under way")
                if not self._state.sleep(command):
                    break
        return None

    def _next(self, command: Command, plan: TurnPlan, model: Model, progress: TurnProgress) -> Step | None:
        """Who runs now (lock held); sleeps while all that is left is still coming; None at the turn's end."""
        while not self._is_over(command, plan, model):
            self._reuse.settle()
            step = self._prefill_step(command, plan, model, progress) or self._decode_step(plan, model, progress)
            if step is not None:
                self._claim(step)
                return step
            if self._reuse.pending or not any(kv_is_coming(self._state, command, key) for key in plan.waiting()):
                return None
            start = time.monotonic()
            self._state.sleep(command)
            progress.wait_s += time.monotonic() - start
        return None

    def _is_over(self, command: Command, plan: TurnPlan, model: Model) -> bool:
        return plan.ended or command.cancelled or self._state.stopping or not model.usable

    def _prefill_step(self, command: Command, plan: TurnPlan, model: Model, progress: TurnProgress) -> Step | None:
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
                return Step(model, [sequence], tokens, prefill=True)
            else:
                plan.drop(part.key)
                progress.note(sequence, starved=True)
        return None

    def _decode_step(self, plan: TurnPlan, model: Model, progress: TurnProgress) -> Step | None:
        if not plan.decoding:
            return None
        batch = []
        for key in list(plan.decode):
            sequence = self._here(key, model)
            if sequence is None or sequence.place is not Place.DEVICE or sequence.kv_tokens != sequence.length - 1:
                continue
            if self._grow(sequence, 1, plan):
                batch.append(sequence)
            else:
                plan.drop(key)
                progress.note(sequence, starved=True)
        return Step(model, batch, 1) if batch else None

    def _here(self, key: SeqKey, model: Model) -> Sequence | None:
        """The sequence if it is this model's and no copy touches or wants it."""
        sequence = self._state.sequences.get(key)
        if sequence is None or sequence.model != model.name or sequence.moving or sequence.wanted:
            return None
        return sequence

    def _grow(self, sequence: Sequence, tokens: int, plan: TurnPlan) -> bool:
        """Blocks for `tokens` more; False when the grant is used up."""
        needed = -(-(sequence.kv_tokens + tokens) // sequence.block_tokens) - sequence.blocks.size
        if needed > 0:
            pool = self._state.device.blocks(sequence.kv_shape)
            before = pool.held_slabs
            try:
                fresh = self._state.device.allocate(sequence.kv_shape, needed, plan.grant)
            except OutOfSlabs:
                return False
            plan.grant -= pool.held_slabs - before
            sequence.blocks = np.concatenate((sequence.blocks, fresh))
        sequence.place = Place.DEVICE
        return True

    def _claim(self, step: Step) -> None:
        step.model.users += 1
        for sequence in step.sequences:
            sequence.busy = True

    def _run(self, step: Step, plan: TurnPlan, progress: TurnProgress) -> None:
        results: list[Sampled | None] = []
        try:
            for start in range(0, len(step.sequences), self._max_batch):
                some = step.sequences[start : start + self._max_batch]
                results += self._backend.step(plan.model, [_input(sequence, step.tokens) for sequence in some])
        except (SidecarError, RuntimeError, ValueError, LookupError, MemoryError) as error:
            raise EngineError(f"a step of {plan.model} failed: {error}") from error
        finally:
            with self._state.changed:
                self._settle(step, results, plan, progress)

    def _settle(self, step: Step, results: list[Sampled | None], plan: TurnPlan, progress: TurnProgress) -> None:
        """The step is over (lock held): tokens to their sequences and gateways, ends, blocks of closed ones freed."""
        step.model.users -= 1
        tokens: dict[str, list[gateway.Token]] = {}
        for sequence in step.sequences:
            sequence.busy = False
            self._state.sequences.settle(sequence)
        for sequence, sampled in zip(step.sequences, results, strict=False):
            if not sequence.closed:
                self._advance(sequence, step.tokens, sampled, plan, progress, tokens)
        for target, some in tokens.items():
            self._push(target, some)
        self._state.changed.notify_all()

    def _advance(
        self,
        sequence: Sequence,
        computed: int,
        sampled: Sampled | None,
        plan: TurnPlan,
        progress: TurnProgress,
        tokens: dict[str, list[gateway.Token]],
    ) -> None:
        before = sequence.full_blocks
        sequence.kv_tokens += computed
        self._state.sequences.publish(self._state.device, sequence, before)
        finish: model_pb.FinishReason.ValueType = model_pb.FINISH_REASON_UNSPECIFIED
        if sampled is not None:
            index = sequence.accept(sampled)
            finish = _finish(sequence)
            tokens.setdefault(sequence.reply_to, []).append(token_of(sequence, index, finish))
        progress.note(sequence, finish)
        if finish != model_pb.FINISH_REASON_UNSPECIFIED:
            plan.drop(sequence.key)
            self._state.sequences.remove(sequence.key)

    def _count(self, step: Step, plan: TurnPlan, progress: TurnProgress, seconds: float) -> None:
        if step.prefill:
            progress.prefill_tokens += step.tokens
            progress.prefill_s += seconds
            step.model.token_s = progress.prefill_s / progress.prefill_tokens
            return
        plan.steps_done += 1
        progress.steps += 1
        progress.decode_s += seconds
        progress.batch = len(step.sequences)
        progress.context_tokens = sum(sequence.kv_tokens for sequence in step.sequences)

    def _report(self, command: Command, progress: TurnProgress, end: bool) -> None:
        self._post(command, progress.flush(time.monotonic(), self._state.memory(), end))


def _input(sequence: Sequence, tokens: int) -> StepInput:
    last = sequence.kv_tokens + tokens == sequence.length
    return StepInput(sequence.tokens(tokens), sequence.kv_tokens, sequence.blocks, sequence.sampler if last else None)


def _finish(sequence: Sequence) -> model_pb.FinishReason.ValueType:
    if sequence.output[-1] in sequence.stop_ids:
        return model_pb.FINISH_REASON_STOP
    if len(sequence.output) >= sequence.max_output:
        return model_pb.FINISH_REASON_LENGTH
    return model_pb.FINISH_REASON_UNSPECIFIED
