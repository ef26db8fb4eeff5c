"""In-flight steps: launched in order, completed in order. The host may be one step behind the device.

Where the backend allows it (`may_follow`), a step is launched while the one before it still samples. A stop id is
then found one step late: the extra token is dropped, and the blocks stay until that step is over.

A step that raises is computed again in halves until the failing sequence is alone: only that sequence ends, and the
others get the tokens of an undisturbed step. Their KV is unchanged, or rewritten with the same values.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field

from aegaeon_sidecar.backends import Backend, Launched, StepInput
from aegaeon_sidecar.domain.errors import BackendError, DeviceLostError
from aegaeon_sidecar.domain.reports import FailureKind
from aegaeon_sidecar.engine.outputs import Failure, Outputs, PushTokens, Result
from aegaeon_sidecar.engine.progress import TurnProgress
from aegaeon_sidecar.engine.state import State
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.sampling import Chosen
from aegaeon_sidecar.weights.models import Model

log = logging.getLogger(__name__)

# Whatever a request can make the backend raise. DeviceLostError is not among them: a lost device is no single request's
# failure, and ends the lane.
STEP_ERRORS = (BackendError, RuntimeError, ValueError, LookupError, MemoryError, ArithmeticError, TypeError)


@dataclass(slots=True)
class Step:
    """One forward pass: its sequences and the number of tokens of each (a chunk at prefill, one at decode).

    `again`: it is the decode after one of the same list of sequences, with nothing changed but their tokens;
    `launched`: its parts, of at most `max_batch` sequences each; `failed`: why there is none of a part.
    """

    model: Model
    sequences: list[Sequence]
    tokens: int
    prefill: bool = False
    again: bool = False
    launched: list[Launched] = field(default_factory=list)
    failed: Exception | None = None


class Steps:
    """Used by the compute lane's thread alone."""

    def __init__(self, state: State, backend: Backend, push: PushTokens, max_batch: int) -> None:
        self._state = state
        self._backend = backend
        self._outputs = Outputs(state.kv, push)
        self._max_batch = max_batch
        self._under_way: deque[Step] = deque()
        self._last: Step | None = None  # of those that are completed

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def full(self) -> bool:
        """The oldest has to be completed before another can be launched."""
        if len(self._under_way) != 1:
            return len(self._under_way) > 1
        step = self._under_way[0]
        if step.prefill or len(step.launched) != 1 or step.failed is not None:
            return True
        return not self.may_be_followed_by(step.sequences)

    def may_be_followed_by(self, batch: list[Sequence]) -> bool:
        """Whether a decode of these may be launched behind one whose tokens are not known. A sequence that joins may be
        one for which they must be."""
        return self._backend.may_follow([sequence.sampler for sequence in batch])

    def claim(self, step: Step) -> None:
        """From here on (lock held) no other thread touches its model and sequences, until it is completed."""
        step.model.users += 1
        for sequence in step.sequences:
            sequence.busy += 1

    def launch(self, step: Step) -> None:
        """Begin a claimed step. What it fails with is seen to when it is completed. Raises DeviceLostError."""
        if step.again and self._goes_on(step):
            return
        before = self._under_way[-1] if self._under_way else None
        self._under_way.append(step)
        rows = {} if before is None else {sequence: row for row, sequence in enumerate(before.sequences)}
        after = None if before is None else before.launched[0]
        try:
            inputs = [_input(step, sequence, rows.get(sequence)) for sequence in step.sequences]
            for some in self._parts(inputs):
                step.launched.append(self._backend.launch(step.model.name, some, after))
        except STEP_ERRORS as error:
            step.failed = error

    def _goes_on(self, step: Step) -> bool:
        """Begin it as the step after the last one, where the backend can."""
        last = self._last
        if last is None or last.sequences is not step.sequences or len(last.launched) != 1 or last.failed is not None:
            return False
        try:
            launched = self._backend.again(step.model.name, last.launched[0])
        except STEP_ERRORS as error:
            step.failed = error
        else:
            if launched is None:
                return False
            step.launched.append(launched)
        self._under_way.append(step)
        return True

    def complete(self, turn: Turn, progress: TurnProgress) -> Step:
        """Wait for the oldest step under way: tokens to their sequences and gateways. Raises DeviceLostError."""
        step = self._last = self._under_way.popleft()
        results: list[Result] = []
        try:
            computed = self._results(step)
            if step.failed is None:
                results += computed
            else:
                self._abandon(turn, progress)
                results = self._apart(step, step.sequences, step.failed)
        except DeviceLostError:
            self._abandon(turn, progress)
            raise
        finally:
            self._outputs.deliver(step.model, step.sequences, step.tokens, results, turn, progress)
        return step

    def _results(self, step: Step) -> list[Chosen]:
        """Of those parts that have some. All are waited for: afterwards nothing of the step is under way.

        Raises DeviceLostError.
        """
        results: list[Chosen] = []
        for part in step.launched:
            try:
                results += part.results()
            except STEP_ERRORS as error:
                step.failed = error
        return results

    def _abandon(self, turn: Turn, progress: TurnProgress) -> None:
        """Steps that began with tokens which are not known: once they are over, nothing of them is kept.

        Raises DeviceLostError.
        """
        while self._under_way:
            step = self._under_way.popleft()
            try:
                self._results(step)
            finally:
                self._outputs.deliver(step.model, step.sequences, step.tokens, [], turn, progress)

    def _apart(self, step: Step, sequences: list[Sequence], error: Exception) -> list[Result]:
        """A step with these sequences raised: what becomes of each when it is tried again. Raises DeviceLostError."""
        log.warning("a step of %s with %d sequences failed: %s", step.model.name, len(sequences), error)
        middle = (len(sequences) + 1) // 2
        return self._again(step, sequences[:middle]) + self._again(step, sequences[middle:])

    def _again(self, step: Step, sequences: list[Sequence]) -> list[Result]:
        results: list[Result] = []
        try:
            for some in self._parts([_input(step, sequence, None) for sequence in sequences]):
                results += self._backend.launch(step.model.name, some).results()
        except STEP_ERRORS as error:
            if len(sequences) > 1:
                return self._apart(step, sequences, error)
            return [Failure(FailureKind.ENGINE, f"a step of {step.model.name} failed with it alone: {error}")]
        return results

    def _parts(self, inputs: list[StepInput]) -> list[list[StepInput]]:
        return [inputs[first : first + self._max_batch] for first in range(0, len(inputs), self._max_batch)]

    def drain(self, turn: Turn, progress: TurnProgress) -> None:
        """At a turn's end: steps are still under way where it was cancelled. Raises DeviceLostError."""
        while self._under_way:
            self.complete(turn, progress)
        self._last = None


def _input(step: Step, sequence: Sequence, row: int | None) -> StepInput:
    """`row`: the sequence's own in the step before, which is under way; None where it had no part in it."""
    tokens = step.tokens
    adapter = None if sequence.adapter is None else sequence.adapter.weights()
    if row is not None:
        return StepInput((), sequence.kv_tokens + 1, sequence.blocks, sequence.sampler, follows=row, adapter=adapter)
    last = sequence.kv_tokens + tokens == sequence.length
    if sequence.pooling is not None:
        pooling = sequence.pooling if last else None
        chunk = sequence.tokens(tokens)
        return StepInput(chunk, sequence.kv_tokens, sequence.blocks, None, pooling=pooling, prompt=True)
    sampler = sequence.sampler if last else None
    scored = sequence.to_score(tokens) if sequence.kv_tokens < len(sequence.prompt) else None
    likeliest = sequence.sampler.params.prompt_logprobs or 0
    return StepInput(
        sequence.tokens(tokens),
        sequence.kv_tokens,
        sequence.blocks,
        sampler,
        scored=scored,
        likeliest=likeliest,
        adapter=adapter,
        prompt=step.prefill,
    )
