"""In-flight steps: launched in order, completed in order. The host may be one step behind the device.

Where the backend allows it (`may_follow`), a step is launched while the one before it still samples. A stop id is
then found one step late: the extra token is dropped, and the blocks stay until that step is over.

A step that raises is computed again in halves until the failing sequence is alone: only that sequence ends, and the
others get the tokens of an undisturbed step. Their KV is unchanged, or rewritten with the same values.
"""

from __future__ import annotations

import logging
from collections import deque

from aegaeon_proto.engine.reports import FailureKind
from aegaeon_sidecar.backends import Backend, StepInput
from aegaeon_sidecar.domain.errors import BackendError, DeviceLostError
from aegaeon_sidecar.engine.outputs import Failure, Outputs, PushTokens, Result
from aegaeon_sidecar.engine.step import Step
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.sampling import Chosen

log = logging.getLogger(__name__)

# Whatever a request can make the backend raise. DeviceLostError is not among them: a lost device is no single request's
# failure, and ends the lane.
STEP_ERRORS = (BackendError, RuntimeError, ValueError, LookupError, MemoryError, ArithmeticError, TypeError)


class Steps:
    """Used by the compute lane's thread alone."""

    def __init__(self, kv: KvMemory, backend: Backend, push: PushTokens, max_batch: int) -> None:
        self._backend = backend
        self._outputs = Outputs(kv, push)
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
        """True when a decode of these may be launched after a step whose tokens are not known. A sequence that joins
        may need them."""
        return self._backend.may_follow([sequence.sampler for sequence in batch])

    def launch(self, step: Step) -> None:
        """Begin a claimed step. What it fails with is seen to when it is completed. Raises DeviceLostError."""
        if step.again and self._goes_on(step):
            return
        before = self._under_way[-1] if self._under_way else None
        self._under_way.append(step)
        rows = {} if before is None else {sequence: row for row, sequence in enumerate(before.sequences)}
        after = None if before is None else before.launched[0]
        try:
            inputs = [step.input(sequence, rows.get(sequence)) for sequence in step.sequences]
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

    def complete(self) -> Step:
        """Wait for the oldest step under way: tokens to their sequences and gateways. Raises DeviceLostError."""
        step = self._last = self._under_way.popleft()
        results: list[Result] = []
        try:
            computed = self._results(step)
            if step.failed is None:
                results += computed
            else:
                self._abandon()
                results = self._apart(step, step.sequences, step.failed)
        except DeviceLostError:
            self._abandon()
            raise
        finally:
            self._outputs.deliver(step, results)
        return step

    def _results(self, step: Step) -> list[Chosen]:
        """The results of the parts that have some; waits for all of them, so that no part of the step remains in
        flight.

        Raises DeviceLostError.
        """
        results: list[Chosen] = []
        for part in step.launched:
            try:
                results += part.results()
            except STEP_ERRORS as error:
                step.failed = error
        return results

    def _abandon(self) -> None:
        """Steps that began with tokens which are not known: once they are over, nothing of them is kept.

        Raises DeviceLostError.
        """
        while self._under_way:
            step = self._under_way.popleft()
            try:
                self._results(step)
            finally:
                self._outputs.deliver(step, [])

    def _apart(self, step: Step, sequences: list[Sequence], error: Exception) -> list[Result]:
        """A step with these sequences raised: what becomes of each when it is tried again. Raises DeviceLostError."""
        log.warning("a step of %s with %d sequences failed: %s", step.model.name, len(sequences), error)
        middle = (len(sequences) + 1) // 2
        return self._again(step, sequences[:middle]) + self._again(step, sequences[middle:])

    def _again(self, step: Step, sequences: list[Sequence]) -> list[Result]:
        results: list[Result] = []
        try:
            for some in self._parts([step.input(sequence, None) for sequence in sequences]):
                results += self._backend.launch(step.model.name, some).results()
        except STEP_ERRORS as error:
            if len(sequences) > 1:
                return self._apart(step, sequences, error)
            return [Failure(FailureKind.ENGINE, f"a step of {step.model.name} failed with it alone: {error}")]
        return results

    def _parts(self, inputs: list[StepInput]) -> list[list[StepInput]]:
        return [inputs[first : first + self._max_batch] for first in range(0, len(inputs), self._max_batch)]

    def drain(self) -> None:
        """Complete the steps in flight at a turn's end, after it was cancelled. Raises DeviceLostError."""
        while self._under_way:
            self.complete()
        self._last = None
