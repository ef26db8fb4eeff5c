"""A turn while it runs: which step is next is chosen at each token boundary (Paper section 4: token-level scheduling).

Amendments, swapped-in sequences and closes take effect only there. On a GPU they take effect one step later, as the
next step is launched before the tokens of the last one are known (steps.py).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from aegaeon_native import OutOfSlabs
from aegaeon_proto.engine.commands import Adopt, SwapIn
from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.engine.sequences import Place
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.engine.step import Step
from aegaeon_sidecar.engine.steps import Steps
from aegaeon_sidecar.engine.turn import Part, Together, Turn
from aegaeon_sidecar.kv.reuse import PrefixReuse
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.weights.models import Model

_SCORED_TOKENS = 64  # of a prompt in a step: each has a row of logits


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Tokens in one step at most: of a prompt, and of the prompts of a model that generates nothing."""

    prompt: int
    pooled: int


@dataclass(frozen=True, slots=True, eq=False)
class RunningTurn:
    """Lives from when the turn's model is resident until no step is left. `next` and `waits`: with the lock held."""

    state: State
    steps: Steps
    reuse: PrefixReuse
    limits: ChunkLimits
    command: Queued
    turn: Turn
    model: Model

    def next(self) -> Step | None:
        """The next step, claimed; None when none can be launched before what is under way, if anything, is over."""
        self.reuse.collect()
        step = None if self._over else self._choose()
        if step is not None:
            step.claim()
        return step

    def waits(self) -> bool:
        """True when no step is in flight, but another thread will bring KV or a grammar."""
        if self._over or len(self.steps) or self.reuse.pending:
            return False
        return any(self._is_coming(key) for key in self.turn.waiting())

    def _is_coming(self, key: SeqId) -> bool:
        """True when the data that this sequence lacks for a step will arrive: its KV, or its compiled grammar."""
        sequence = self.state.kv.sequences.get(key)
        return self._kv_is_coming(key) or (sequence is not None and not sequence.ready)

    def _kv_is_coming(self, key: SeqId) -> bool:
        return self.state.program.ends_before(
            self.command.id, Lane.KV_IN, lambda body: isinstance(body, SwapIn | Adopt) and body.seq == key
        )

    @property
    def _over(self) -> bool:
        return self.turn.ended or self.command.cancelled or self.state.monitor.stopping or not self.model.usable

    def _choose(self) -> Step | None:
        """Choose the next step; while one is in flight, only the decode step after it, if it is known before the tokens
        are."""
        if not len(self.steps):
            return self._prefill() or self._decode()
        if self.steps.full or self.turn.prefill or self.reuse.pending:
            return None
        return self._decode()

    def _prefill(self) -> Step | None:
        """The first part's next chunk, and those of further parts where the model pools: a pass reads all weights for
        one text or for many. What lacks KV that is on its way is passed over."""
        chunks: dict[Sequence, int] = {}
        for part in list(self.turn.prefill):
            sequence = self._here(part.key)
            if sequence is None or sequence in chunks or not self._begun(sequence):
                continue
            tokens = self._chunk(part, sequence, sum(chunks.values()))
            if tokens <= 0:
                self.turn.prefill.remove(part)
            elif self._admit(sequence, tokens):
                part.left = 0 if sequence.kv_tokens + tokens == sequence.length else part.left - tokens
                chunks[sequence] = tokens
                if sequence.pooling is None or sum(chunks.values()) >= self.limits.pooled:
                    break
        return Step(self.turn, self.model, list(chunks), chunks) if chunks else None

    def _begun(self, sequence: Sequence) -> bool:
        """True when it can be computed from its position; at first, after the cached part of its prompt."""
        if sequence.place is Place.NONE and not self._kv_is_coming(sequence.key):
            sequence.token_s = self.model.token_s
            self.reuse.begin(sequence, self.turn)
            return not sequence.moving
        return sequence.place is Place.DEVICE

    def _chunk(self, part: Part, sequence: Sequence, taken: int) -> int:
        """Tokens of its next step, `taken` others of which are chosen; 0 where what was cached of the prompt made this
        part needless."""
        if sequence.sampled_here:
            return 0
        most = self.limits.prompt if sequence.pooling is None else self.limits.pooled - taken
        most = most if sequence.scored is None else min(most, _SCORED_TOKENS)
        return min(part.left, most, sequence.length - sequence.kv_tokens)

    def _decode(self) -> Step | None:
        turn, behind = self.turn, len(self.steps) > 0
        if not turn.decoding:
            return None
        together = turn.together if not behind and turn.together is not None and turn.together.go_on() else None
        batch = self._batch() if together is None else together.sequences
        if not batch:
            return None
        if behind and not self.steps.may_be_followed_by(batch):
            turn.together = None
            return None
        turn.begun += 1
        return Step(turn, self.model, batch, again=together is not None)

    def _batch(self) -> list[Sequence]:
        """The turn's sequences that can decode a token, with blocks for it."""
        batch = []
        for key in list(self.turn.decode):
            sequence = self._here(key)
            if sequence is not None and _has_next(sequence) and self._admit(sequence, sequence.busy + 1):
                batch.append(sequence)
        complete = len(batch) == len(self.turn.decode) and all(sequence.adapter is None for sequence in batch)
        self.turn.together = Together(batch, [sequence.blocks for sequence in batch]) if complete else None
        return batch

    def _here(self, key: SeqId) -> Sequence | None:
        """The sequence if it is this model's, its grammar is compiled, and no copy touches or wants it."""
        sequence = self.state.kv.sequences.get(key)
        if sequence is None or sequence.model != self.model.name or sequence.moving or sequence.queued_moves:
            return None
        return sequence if sequence.ready else None

    def _admit(self, sequence: Sequence, tokens: int) -> bool:
        """Admit a sequence to the next step, with blocks for `tokens` more. Where the grant is used up it leaves the
        turn, starved: once no step of it is under way."""
        if not self._grow(sequence, tokens):
            if not sequence.busy:
                self.turn.starve(sequence)
            return False
        if sequence.turn is not self.turn:
            sequence.enter(self.turn, self.model.loaded_s, time.monotonic())
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for `tokens` more; False when the grant is used up."""
        needed = -(-(sequence.kv_tokens + tokens) // sequence.block_tokens) - sequence.blocks.size
        if needed > 0:
            device, kv_shape = self.state.kv.device, sequence.kv_shape
            before = device.blocks(kv_shape).held_slabs
            try:
                fresh = device.allocate(kv_shape, needed, self.turn.grant)
            except OutOfSlabs:
                return False
            self.turn.grant -= device.blocks(kv_shape).held_slabs - before
            sequence.blocks = np.concatenate((sequence.blocks, fresh))
        sequence.place = Place.DEVICE
        return True


def _has_next(sequence: Sequence) -> bool:
    """All but its last token have their KV in, or will when the step under way is over; and that is not its last."""
    if sequence.place is not Place.DEVICE or sequence.kv_tokens != sequence.length - 1:
        return False
    return not sequence.busy or len(sequence.output) + sequence.busy < sequence.max_output
