"""Steps under way: launched in order, settled in order. The host may be one step behind the device.

Where the backend lets it (`may_follow`), a step is launched while the one before it still chooses its tokens. What ends
by a stop id is then found one step late: the token too many is dropped, and its blocks stay until that step is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aegaeon_proto.v1 import gateway_pb2 as gateway
from aegaeon_proto.v1 import model_pb2 as model_pb
from aegaeon_sidecar.backends import Backend, Launched, Sampled, StepInput
from aegaeon_sidecar.errors import EngineError, SidecarError
from aegaeon_sidecar.plan import TurnPlan
from aegaeon_sidecar.progress import TurnProgress
from aegaeon_sidecar.sequences import Sequence
from aegaeon_sidecar.state import State
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.wire import token_of

PushTokens = Callable[[str, list[gateway.Token]], None]
_STEP_ERRORS = (SidecarError, RuntimeError, ValueError, LookupError, MemoryError)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass: who takes part and how many tokens each (a chunk at prefill, one at decode).

    `launched`: its parts, of at most `max_batch` sequences each.
    """

    model: Model
    sequences: list[Sequence]
    tokens: int
    prefill: bool = False
    launched: list[Launched] = field(default_factory=list)


class Steps:
    """Used by the compute lane's thread alone."""

    def __init__(self, state: State, backend: Backend, push: PushTokens, max_batch: int) -> None:
        self._state = state
        self._backend = backend
        self._push = push
        self._max_batch = max_batch
        self._under_way: deque[Step] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """The oldest has to be settled before another can be launched."""
        if len(self._under_way) != 1:
            return len(self._under_way) > 1
        step = self._under_way[0]
        if step.prefill or len(step.launched) != 1:
            return True
        return not self._backend.may_follow([sequence.sampler for sequence in step.sequences])

    def claim(self, step: Step) -> None:
        """From here on (lock held) nobody else touches its model and sequences, until it is settled."""
        step.model.users += 1
        for sequence in step.sequences:
            sequence.busy += 1

    def launch(self, step: Step) -> None:
        """Begin a claimed step. Raises EngineError: it is settled as far as it came by `drain`."""
        before = self._under_way[-1] if self._under_way else None
        self._under_way.append(step)
        rows = {} if before is None else {sequence: row for row, sequence in enumerate(before.sequences)}
        after = None if before is None else before.launched[0]
        inputs = [_input(sequence, step.tokens, rows.get(sequence)) for sequence in step.sequences]
        try:
            for first in range(0, len(inputs), self._max_batch):
                some = inputs[first : first + self._max_batch]
                step.launched.append(self._backend.launch(step.model.name, some, after))
        except _STEP_ERRORS as error:
            raise _failed(step, error) from error

    def settle(self, plan: TurnPlan, progress: TurnProgress) -> Step:
        """Wait for the oldest step under way: tokens to their sequences and gateways. Raises EngineError."""
        step = self._under_way.popleft()
        results: list[Sampled | None] = []
        try:
            for part in step.launched:
                results += part.results()
        except _STEP_ERRORS as error:
            self._abandon(plan, progress)
            raise _failed(step, error) from error
        finally:
            self._settle(step, results, plan, progress)
        return step

    def _abandon(self, plan: TurnPlan, progress: TurnProgress) -> None:
        """Steps that began with tokens which will never be known: once they are over, nothing of them is kept."""
        while self._under_way:
            step = self._under_way.popleft()
            for part in step.launched:
                with suppress(*_STEP_ERRORS):  # the failure before it is the one that is told
                    part.results()
            self._settle(step, [], plan, progress)

    def drain(self, plan: TurnPlan, progress: TurnProgress) -> None:
        """At a turn's end: steps are still under way where one behind them could not be launched."""
        while self._under_way:
            with suppress(EngineError):  # that failure is the one that is told
                self.settle(plan, progress)

    def _settle(self, step: Step, results: list[Sampled | None], plan: TurnPlan, progress: TurnProgress) -> None:
        with self._state.changed:
            step.model.users -= 1
            tokens: dict[str, list[gateway.Token]] = {}
            for sequence in step.sequences:
                sequence.busy -= 1
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


def _input(sequence: Sequence, tokens: int, row: int | None) -> StepInput:
    """`row`: the sequence's own in the step before, which is under way; None where it had no part in it."""
    if row is not None:
        return StepInput((), sequence.kv_tokens + 1, sequence.blocks, sequence.sampler, follows=row)
    last = sequence.kv_tokens + tokens == sequence.length
    return StepInput(sequence.tokens(tokens), sequence.kv_tokens, sequence.blocks, sequence.sampler if last else None)


def _failed(step: Step, error: Exception) -> EngineError:
    return EngineError(f"a step of {step.model.name} failed: {error}")


def _finish(sequence: Sequence) -> model_pb.FinishReason.ValueType:
    if sequence.output[-1] in sequence.stop_ids:
        return model_pb.FINISH_REASON_STOP
    if len(sequence.output) >= sequence.max_output:
        return model_pb.FINISH_REASON_LENGTH
    return model_pb.FINISH_REASON_UNSPECIFIED
