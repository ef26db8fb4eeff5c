"""One step of a turn: what the backend computes of it, and what it counts for in the turn's report."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_sidecar.backends import Launched, StepInput
from aegaeon_sidecar.engine.turn import Turn
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.weights.models import Model


@dataclass(slots=True)
class Step:
    """One forward pass: its sequences and the number of tokens of each (a chunk at prefill, one at decode).

    `chunks`: tokens of each sequence at prefill; empty for a decode. `again`: it is the decode after one of the same
    list of sequences, with nothing changed but their tokens; `launched`: its parts, of at most `max_batch` sequences
    each; `failed`: why there is none of a part.
    """

    turn: Turn
    model: Model
    sequences: list[Sequence]
    chunks: dict[Sequence, int] = field(default_factory=dict)
    again: bool = False
    launched: list[Launched] = field(default_factory=list)
    failed: Exception | None = None

    @property
    def prefill(self) -> bool:
        """Returns whether it computes chunks of prompts: of one, or of several of a model that generates nothing."""
        return bool(self.chunks)

    def tokens_of(self, sequence: Sequence) -> int:
        """Tokens of a sequence that it computes."""
        return self.chunks[sequence] if self.chunks else 1

    def claim(self) -> None:
        """Protect its model and sequences from other threads (lock held) until it is completed."""
        self.model.users += 1
        for sequence in self.sequences:
            sequence.busy += 1

    def input(self, sequence: Sequence, row: int | None) -> StepInput:
        """`row`: the sequence's own in the step before, which is under way; None where it had no part in it."""
        tokens = self.tokens_of(sequence)
        adapter = None if sequence.adapter is None else sequence.adapter.weights()
        if row is not None:
            position, sampler = sequence.kv_tokens + 1, sequence.sampler
            return StepInput((), position, sequence.blocks, sampler, follows=row, adapter=adapter)
        last = sequence.kv_tokens + tokens == sequence.length
        if sequence.pooling is not None:
            pooling = sequence.pooling if last else None
            chunk = sequence.tokens(tokens)
            return StepInput(chunk, sequence.kv_tokens, sequence.blocks, None, pooling=pooling, prompt=True)
        return StepInput(
            sequence.tokens(tokens),
            sequence.kv_tokens,
            sequence.blocks,
            sequence.sampler if last else None,
            scored=sequence.to_score(tokens) if sequence.kv_tokens < len(sequence.prompt) else None,
            likeliest=sequence.sampler.params.prompt_logprobs or 0,
            adapter=adapter,
            prompt=self.prefill,
        )

    def count(self, seconds: float) -> None:
        """Add it to the turn's report. The first of a kind is counted apart, and reported at once: it says nothing of
        those that follow."""
        steps, progress = self.model.first_steps, self.turn.progress
        # A decode with an adapter runs uncaptured, so the graph of its kind is still to come.
        counts = self.prefill or all(sequence.adapter is None for sequence in self.sequences)
        first = counts and steps.ran(steps.kind(self.prefill, len(self.sequences)))
        if first:
            progress.first_s += seconds
            progress.warm = not steps.cold
            progress.urgent = True
        if self.prefill:
            progress.prefill_tokens += sum(self.chunks.values())
            progress.prefill_s += 0.0 if first else seconds
            self.model.token_s = (seconds if first else progress.prefill_s) / progress.prefill_tokens
            return
        progress.steps += 1
        progress.decode_s += 0.0 if first else seconds
        progress.batch = len(self.sequences)
        progress.context_tokens = sum(sequence.kv_tokens for sequence in self.sequences)
