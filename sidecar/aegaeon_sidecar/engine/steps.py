"""Steps under way: launched in order, settled in order. The host may be one step behind the device.

Where the backend lets it (`may_follow`), a step is launched while the one before it still chooses its tokens. What ends
by a stop id is then found one step late: the token too many is dropped, and its blocks stay until that step is over.

A step that raises is computed again in halves until whoever raises again is alone: only that sequence ends, and the
others get the tokens that they would have got. Their KV is as before the step, or is written again with the same.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Union

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import gateway_pb2 as gateway
from aegaeon_proto.v1 import model_pb2 as model_pb
from aegaeon_sidecar.backends import Backend, Launched, StepInput
from aegaeon_sidecar.domain.errors import BackendError, DeviceLostError
from aegaeon_sidecar.engine.progress import TurnProgress
from aegaeon_sidecar.engine.state import State
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.engine.wire import error_of, token_of
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.sampling import Chosen, NotFinite, Sampled
from aegaeon_sidecar.weights.models import Model

log = logging.getLogger(__name__)

PushTokens = Callable[[str, list[gateway.Token]], None]
# Whatever a request can make the backend raise. DeviceLostError is not among them: a lost device is no single request's
# failure, and ends the lane.
_STEP_ERRORS = (BackendError, RuntimeError, ValueError, LookupError, MemoryError, ArithmeticError, TypeError)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a sequence ends without its next token."""

    kind: pb.FailureKind.ValueType
    reason: str


Result = Union[Chosen, Failure]


@dataclass(slots=True)
class Step:
    """One forward pass: who takes part and how many tokens each (a chunk at prefill, one at decode).

    `launched`: its parts, of at most `max_batch` sequences each; `failed`: why there is none of a part.
    """

    model: Model
    sequences: list[Sequence]
    tokens: int
    prefill: bool = False
    launched: list[Launched] = field(default_factory=list)
    failed: Exception | None = None


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
        if step.prefill or len(step.launched) != 1 or step.failed is not None:
            return True
        return not self._backend.may_follow([sequence.sampler for sequence in step.sequences])

    def claim(self, step: Step) -> None:
        """From here on (lock held) nobody else touches its model and sequences, until it is settled."""
        step.model.users += 1
        for sequence in step.sequences:
            sequence.busy += 1

    def launch(self, step: Step) -> None:
        """Begin a claimed step. What it fails with is seen to when it is settled. Raises DeviceLostError."""
        before = self._under_way[-1] if self._under_way else None
        self._under_way.append(step)
        rows = {} if before is None else {sequence: row for row, sequence in enumerate(before.sequences)}
        after = None if before is None else before.launched[0]
        inputs = [_input(sequence, step.tokens, rows.get(sequence)) for sequence in step.sequences]
        try:
            for some in self._parts(inputs):
                step.launched.append(self._backend.launch(step.model.name, some, after))
        except _STEP_ERRORS as error:
            step.failed = error

    def settle(self, plan: Turn, progress: TurnProgress) -> Step:
        """Wait for the oldest step under way: tokens to their sequences and gateways. Raises DeviceLostError."""
        step = self._under_way.popleft()
        results: list[Result] = []
        try:
            computed = self._results(step)
            if step.failed is None:
                results += computed
            else:
                self._abandon(plan, progress)
                results = self._apart(step, step.sequences, step.failed)
        except DeviceLostError:
            self._abandon(plan, progress)
            raise
        finally:
            self._settle(step, results, plan, progress)
        return step

    def _results(self, step: Step) -> list[Chosen]:
        """Of those parts that have some. All are waited for: afterwards nothing of the step is under way.

        Raises DeviceLostError.
        """
        results: list[Chosen] = []
        for part in step.launched:
            try:
                results += part.results()
            except _STEP_ERRORS as error:
                step.failed = error
        return results

    def _abandon(self, plan: Turn, progress: TurnProgress) -> None:
        """Steps that began with tokens which are not known: once they are over, nothing of them is kept.

        Raises DeviceLostError.
        """
        while self._under_way:
            step = self._under_way.popleft()
            try:
                self._results(step)
            finally:
                self._settle(step, [], plan, progress)

    def _apart(self, step: Step, sequences: list[Sequence], error: Exception) -> list[Result]:
        """A step with these sequences raised: what becomes of each when it is tried again. Raises DeviceLostError."""
        log.warning("a step of %s with %d sequences failed: %s", step.model.name, len(sequences), error)
        middle = (len(sequences) + 1) // 2
        return self._again(step, sequences[:middle]) + self._again(step, sequences[middle:])

    def _again(self, step: Step, sequences: list[Sequence]) -> list[Result]:
        results: list[Result] = []
        try:
            for some in self._parts([_input(sequence, step.tokens, None) for sequence in sequences]):
                results += self._backend.launch(step.model.name, some).results()
        except _STEP_ERRORS as error:
            if len(sequences) > 1:
                return self._apart(step, sequences, error)
            return [Failure(pb.FAILURE_KIND_ENGINE, f"a step of {step.model.name} failed with it alone: {error}")]
        return results

    def _parts(self, inputs: list[StepInput]) -> list[list[StepInput]]:
        return [inputs[first : first + self._max_batch] for first in range(0, len(inputs), self._max_batch)]

    def drain(self, plan: Turn, progress: TurnProgress) -> None:
        """At a turn's end: steps are still under way where it was cancelled. Raises DeviceLostError."""
        while self._under_way:
            self.settle(plan, progress)

    def _settle(self, step: Step, results: list[Result], plan: Turn, progress: TurnProgress) -> None:
        with self._state.monitor.changed:
            step.model.users -= 1
            tokens: dict[str, list[gateway.Token]] = {}
            for sequence in step.sequences:
                sequence.busy -= 1
                self._state.kv.sequences.settle(sequence)
            for sequence, result in zip(step.sequences, results, strict=False):
                judged = _judged(step.model, result)
                if sequence.closed:
                    continue
                if isinstance(judged, Failure):
                    self._end(sequence, judged, plan, progress, tokens)
                else:
                    self._advance(sequence, step.tokens, judged, plan, progress, tokens)
            for target, some in tokens.items():
                self._push(target, some)
            self._state.monitor.changed.notify_all()

    def _end(
        self,
        sequence: Sequence,
        failure: Failure,
        plan: Turn,
        progress: TurnProgress,
        tokens: dict[str, list[gateway.Token]],
    ) -> None:
        """It alone ends, and nothing of this step is kept of it. Steps may go better elsewhere: its gateway waits."""
        log.warning("%s choice %d ends: %s", sequence.key.request, sequence.key.choice, failure.reason)
        if failure.kind != pb.FAILURE_KIND_ENGINE:
            tokens.setdefault(sequence.reply_to, []).append(error_of(sequence))
        progress.note(sequence, model_pb.FINISH_REASON_ERROR, reason=failure.reason, failure=failure.kind)
        plan.drop(sequence.key)
        self._state.kv.sequences.remove(sequence.key)

    def _advance(
        self,
        sequence: Sequence,
        computed: int,
        sampled: Sampled | None,
        plan: Turn,
        progress: TurnProgress,
        tokens: dict[str, list[gateway.Token]],
    ) -> None:
        before = sequence.full_blocks
        sequence.kv_tokens += computed
        self._state.kv.sequences.publish(self._state.kv.device, sequence, before)
        finish: model_pb.FinishReason.ValueType = model_pb.FINISH_REASON_UNSPECIFIED
        if sampled is not None:
            index = sequence.accept(sampled)
            finish = _finish(sequence)
            tokens.setdefault(sequence.reply_to, []).append(token_of(sequence, index, finish))
        progress.note(sequence, finish)
        if finish != model_pb.FINISH_REASON_UNSPECIFIED:
            plan.drop(sequence.key)
            self._state.kv.sequences.remove(sequence.key)


def _input(sequence: Sequence, tokens: int, row: int | None) -> StepInput:
    """`row`: the sequence's own in the step before, which is under way; None where it had no part in it."""
    if row is not None:
        return StepInput((), sequence.kv_tokens + 1, sequence.blocks, sequence.sampler, follows=row)
    last = sequence.kv_tokens + tokens == sequence.length
    return StepInput(sequence.tokens(tokens), sequence.kv_tokens, sequence.blocks, sequence.sampler if last else None)


def _judged(model: Model, result: Result) -> Sampled | Failure | None:
    """What counts of a result: no id goes into a prompt or to a client that is not in the vocabulary."""
    if isinstance(result, Sampled):
        size = model.layout.vocab_size if model.layout is not None else 0
        if result.token >= 0 and (result.token < size or not size):
            return result
        return Failure(pb.FAILURE_KIND_ENGINE, f"a step of {model.name} chose token {result.token} of {size}")
    if not isinstance(result, NotFinite):
        return result
    if result.asked:
        reason = "the logits are not finite with the penalties, logit_bias and min_tokens that were asked for"
        return Failure(pb.FAILURE_KIND_INVALID, reason)
    return Failure(pb.FAILURE_KIND_NOT_FINITE, f"the logits that {model.name} computed are not finite")


def _finish(sequence: Sequence) -> model_pb.FinishReason.ValueType:
    if sequence.output[-1] in sequence.stop_ids:
        return model_pb.FINISH_REASON_STOP
    if len(sequence.output) >= sequence.max_output:
        return model_pb.FINISH_REASON_LENGTH
    return model_pb.FINISH_REASON_UNSPECIFIED
