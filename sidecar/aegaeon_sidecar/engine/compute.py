"""The compute lane: a turn is prefill parts, then decode steps, one token boundary after the other.

At each token boundary `_next` chooses again (Paper section 4: token-level scheduling): Launch a step, Wait for an
in-flight one, or End. Amendments, swapped-in sequences and closes take effect only there. On a GPU they take effect
one step later, as the next step is launched before the tokens of the last one are known (steps.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

import numpy as np

from aegaeon_native import OutOfSlabs
from aegaeon_sidecar.domain.errors import CancelledError, UnknownError
from aegaeon_sidecar.domain.reports import StepDone
from aegaeon_sidecar.domain.sequences import Place, SeqKey
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.progress import TurnProgress
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.engine.steps import Step, Steps
from aegaeon_sidecar.engine.turn import Together, Turn
from aegaeon_sidecar.engine.waiting import is_coming, kv_is_coming, model_is_coming
from aegaeon_sidecar.engine.warm_up import WarmUp
from aegaeon_sidecar.kv.reuse import PrefixReuse
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.weights.deaths import Deaths
from aegaeon_sidecar.weights.models import Model

_SCORED_TOKENS = 64  # of a prompt in a step: each has a row of logits
PostStep = Callable[[Queued, StepDone], None]


@dataclass(frozen=True, slots=True)
class Launch:
    """This step is the next one; its model and sequences are claimed."""

    step: Step


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be launched before a step or a copy that is under way has ended."""


@dataclass(frozen=True, slots=True)
class End:
    """The turn has no more work or was ended, and no step of the turn is in flight."""


Action = Union[Launch, Wait, End]


class Compute:
    """Runs turns on the compute lane's thread."""

    def __init__(
        self,
        state: State,
        steps: Steps,
        warm_up: WarmUp,
        post: PostStep,
        reuse: PrefixReuse,
        chunk_tokens: int,
        deaths: Deaths,
    ) -> None:
        self._state = state
        self._steps = steps
        self._warm_up = warm_up
        self._post = post
        self._chunk_tokens = chunk_tokens
        self._reuse = reuse
        self._deaths = deaths
        self._free_since_s = time.monotonic()
        self._boundary_s = 0.0

    def turn(self, command: Queued, turn: Turn) -> Outcome:
        """Carry a turn out; reports itself by StepDone. Raises UnknownError, CancelledError, EngineError."""
        now = time.monotonic()
        progress = TurnProgress(command.id, now, wait_s=now - max(self._free_since_s, command.issued_s))
        well = False
        try:
            self._run(command, turn, progress)
            well = not command.cancelled
        finally:
            self._steps.drain(turn, progress)
            self._reuse.finish()
            self._free_since_s = time.monotonic()
            if well or progress.steps or progress.prefill_tokens or progress.urgent:
                self._report(command, progress, end=well)
        if not well:
            raise CancelledError(f"the turn of {turn.model} was cancelled")
        return Outcome(silent=True)

    def _run(self, command: Queued, turn: Turn, progress: TurnProgress) -> None:
        """Once its model is here, its steps."""
        model = self._await_model(command, turn, progress)
        if model is None:
            return
        with self._deaths.computing(model.name):
            if turn.warm_up:
                self._warm_up.run(turn, model, progress)
            else:
                self._compute(command, turn, model, progress)

    def _compute(self, command: Queued, turn: Turn, model: Model, progress: TurnProgress) -> None:
        """From boundary to boundary, until `_next` says that the turn is over."""
        self._boundary_s = time.perf_counter()
        while True:
            with self._state.monitor.changed:
                action = self._next(command, turn, model, progress)
            match action:
                case Launch(step):
                    self._steps.launch(step)
                    if self._steps.full:
                        self._complete(command, turn, progress)
                case Wait():
                    self._wait(command, turn, progress)
                case End():
                    return

    def _await_model(self, command: Queued, turn: Turn, progress: TurnProgress) -> Model | None:
        start = time.monotonic()
        with self._state.monitor.changed:
            while not turn.ended:
                model = self._state.table.models.get(turn.model)
                if model is not None and model.resident:
                    progress.wait_s += time.monotonic() - start
                    return model
                if not model_is_coming(self._state, command, turn.model):
                    raise UnknownError(f"model {turn.model} is not resident and no Load of it is under way")
                if not self._state.monitor.sleep(command):
                    break
        return None

    def _next(self, command: Queued, turn: Turn, model: Model, progress: TurnProgress) -> Action:
        """Return the turn's next action (lock held). Sleeps while all its remaining sequences wait for copies."""
        if len(self._steps):
            return self._behind(command, turn, model, progress)
        while not self._is_over(command, turn, model):
            self._reuse.collect()
            step = self._prefill_step(command, turn, model, progress) or self._decode_step(turn, model, progress)
            if step is not None:
                return Launch(step)
            if self._reuse.pending:
                return Wait()
            if not any(is_coming(self._state, command, key) for key in turn.waiting()):
                return End()
            start = time.monotonic()
            self._state.monitor.sleep(command)
            progress.wait_s += time.monotonic() - start
            self._boundary_s = time.perf_counter()
        return End()

    def _behind(self, command: Queued, turn: Turn, model: Model, progress: TurnProgress) -> Action:
        """While a step is under way: the decode step after it, where that is known before its tokens are."""
        if self._steps.full or turn.prefill or self._reuse.pending or self._is_over(command, turn, model):
            return Wait()
        step = self._decode_step(turn, model, progress)
        return Wait() if step is None else Launch(step)

    def _wait(self, command: Queued, turn: Turn, progress: TurnProgress) -> None:
        """For the oldest step under way, else for the oldest copy of KV that is reused."""
        if len(self._steps):
            self._complete(command, turn, progress)
            return
        self._reuse.wait()
        self._boundary_s = time.perf_counter()

    def _is_over(self, command: Queued, turn: Turn, model: Model) -> bool:
        return turn.ended or command.cancelled or self._state.monitor.stopping or not model.usable

    def _prefill_step(self, command: Queued, turn: Turn, model: Model, progress: TurnProgress) -> Step | None:
        for part in list(turn.prefill):
            sequence = self._here(part.key, model)
            if sequence is not None and sequence.place is Place.NONE and kv_is_coming(self._state, command, part.key):
                continue
            if sequence is None or sequence.place is Place.HOST:
                continue
            if sequence.place is Place.NONE:
                sequence.token_s = model.token_s
                self._reuse.begin(sequence, turn)
            if sequence.moving:
                continue
            prompt_is_in = sequence.sampled_here  # what was cached of it made this part needless
            most = self._chunk_tokens if sequence.said is None else min(self._chunk_tokens, _SCORED_TOKENS)
            tokens = 0 if prompt_is_in else min(part.left, most, sequence.length - sequence.kv_tokens)
            if tokens <= 0:
                turn.prefill.remove(part)
            elif self._grow(sequence, tokens, turn):
                if sequence.turn is not turn:
                    sequence.enter(turn, model.loaded_s, time.monotonic())
                part.left -= tokens
                if sequence.kv_tokens + tokens == sequence.length:
                    part.left = 0
                return self._claimed(Step(model, [sequence], tokens, prefill=True))
            else:
                turn.drop(part.key)
                progress.note(sequence, starved=True)
        return None

    def _decode_step(self, turn: Turn, model: Model, progress: TurnProgress) -> Step | None:
        if not turn.decoding:
            return None
        together = turn.together
        again = together is not None and not len(self._steps) and together.go_on()
        batch = together.sequences if together is not None and again else self._batch(turn, model, progress)
        if not batch:
            return None
        if len(self._steps) and not self._steps.may_be_followed_by(batch):
            turn.together = None
            return None
        turn.begun += 1
        return self._claimed(Step(model, batch, 1, again=again))

    def _batch(self, turn: Turn, model: Model, progress: TurnProgress) -> list[Sequence]:
        """Those of the turn's sequences that can decode a token, with blocks for it."""
        batch = []
        for key in list(turn.decode):
            sequence = self._here(key, model)
            if sequence is None or not _has_next(sequence):
                continue
            if self._grow(sequence, sequence.busy + 1, turn):
                if sequence.turn is not turn:
                    sequence.enter(turn, model.loaded_s, time.monotonic())
                batch.append(sequence)
            elif not sequence.busy:  # else it is reported when its step is over
                turn.drop(key)
                progress.note(sequence, starved=True)
        whole = len(batch) == len(turn.decode) and all(sequence.adapter is None for sequence in batch)
        turn.together = Together(batch, [sequence.blocks for sequence in batch]) if whole else None
        return batch

    def _claimed(self, step: Step) -> Step:
        self._steps.claim(step)
        return step

    def _here(self, key: SeqKey, model: Model) -> Sequence | None:
        """The sequence if it is this model's, its grammar is compiled, and no copy touches or wants it."""
        sequence = self._state.kv.sequences.get(key)
        if sequence is None or sequence.model != model.name or sequence.moving or sequence.wanted:
            return None
        if not sequence.ready:
            return None
        return sequence

    def _grow(self, sequence: Sequence, tokens: int, turn: Turn) -> bool:
        """Blocks for `tokens` more; False when the grant is used up."""
        needed = -(-(sequence.kv_tokens + tokens) // sequence.block_tokens) - sequence.blocks.size
        if needed > 0:
            pool = self._state.kv.device.blocks(sequence.kv_shape)
            before = pool.held_slabs
            try:
                fresh = self._state.kv.device.allocate(sequence.kv_shape, needed, turn.grant)
            except OutOfSlabs:
                return False
            turn.grant -= pool.held_slabs - before
            sequence.blocks = np.concatenate((sequence.blocks, fresh))
        sequence.place = Place.DEVICE
        return True

    def _complete(self, command: Queued, turn: Turn, progress: TurnProgress) -> None:
        """The oldest step ends: its tokens go out, its time is counted from the boundary before it."""
        step = self._steps.complete(turn, progress)
        now = time.perf_counter()
        self._count(step, progress, now - self._boundary_s)
        self._boundary_s = now
        if progress.due(time.monotonic()):
            self._report(command, progress, end=False)

    def _count(self, step: Step, progress: TurnProgress, seconds: float) -> None:
        """Of the first of a kind it is counted apart, and reported at once: it says nothing of those that follow."""
        steps = step.model.first_steps
        # A decode with an adapter runs uncaptured, so the graph of its kind is still to come.
        counts = step.prefill or all(sequence.adapter is None for sequence in step.sequences)
        first = counts and steps.ran(steps.kind(step.prefill, len(step.sequences)))
        if first:
            progress.first_s += seconds
            progress.warm = not steps.cold
            progress.urgent = True
        if step.prefill:
            progress.prefill_tokens += step.tokens
            progress.prefill_s += 0.0 if first else seconds
            step.model.token_s = (seconds if first else progress.prefill_s) / progress.prefill_tokens
            return
        progress.steps += 1
        progress.decode_s += 0.0 if first else seconds
        progress.batch = len(step.sequences)
        progress.context_tokens = sum(sequence.kv_tokens for sequence in step.sequences)

    def _report(self, command: Queued, progress: TurnProgress, end: bool) -> None:
        with self._state.monitor.changed:
            self._post(command, progress.flush(time.monotonic(), self._state.memory(), end))


def _has_next(sequence: Sequence) -> bool:
    """All but its last token have their KV in, or will when the step under way is over; and that is not its last."""
    if sequence.place is not Place.DEVICE or sequence.kv_tokens != sequence.length - 1:
        return False
    return not sequence.busy or len(sequence.output) + sequence.busy < sequence.max_output
