"""The state of a turn: remaining prefill parts, decoding sequences, remaining steps and slabs; and its progress.

Dispatch creates it from a Turn command, Amend changes it at any time, and the compute lane works it off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from aegaeon_proto.engine import commands
from aegaeon_proto.engine.ids import CommandId, SeqId
from aegaeon_proto.engine.reports import FailureKind
from aegaeon_proto.engine.sequences import Finish
from aegaeon_sidecar.engine.progress import REPORT_STEPS, TurnCounts, standing
from aegaeon_sidecar.kv.sequences import Sequence
from aegaeon_sidecar.memory.cache_blocks import Blocks


@dataclass(slots=True)
class Part:
    """`left` more tokens of prompt and prefix to compute for this sequence."""

    key: SeqId
    left: int


@dataclass(frozen=True, slots=True)
class Together:
    """The sequences of a decode step, and the blocks of each in it."""

    sequences: list[Sequence]
    blocks: list[Blocks]

    def go_on(self) -> bool:
        """True when all sequences can take the next step unchanged: no copy waits for or has moved a sequence, and
        blocks have room.

        Blocks are replaced when they change, never changed.
        """
        for sequence, blocks in zip(self.sequences, self.blocks, strict=True):
            if sequence.blocks is not blocks or sequence.moving or sequence.queued_moves:
                return False
            if not sequence.kv_tokens % sequence.block_tokens:
                return False
        return True


@dataclass(slots=True)
class Turn:
    """Guarded by the engine's lock, all but `progress`, which is the compute lane's. `grant`: slabs that the KV cache
    may still take; `warm_up`: it has no sequence; `begun`: of its decode steps; `ended`: stop at this boundary;
    `together`: the newest step's, where it was of all of `decode`."""

    progress: TurnCounts
    model: str
    prefill: list[Part]
    decode: dict[SeqId, None]
    steps: int
    grant: int
    warm_up: bool = False
    begun: int = 0
    ended: bool = field(default=False)
    together: Together | None = None

    @staticmethod
    def of(command: CommandId, turn: commands.Turn) -> Turn:
        """The turn of a Turn command."""
        return Turn(
            progress=TurnCounts(command, every=max(turn.report_steps, REPORT_STEPS)),
            model=turn.model,
            prefill=[Part(part.seq, part.tokens) for part in turn.prefill],
            decode=dict.fromkeys(turn.decode),
            steps=turn.steps,
            grant=turn.slabs,
            warm_up=turn.warm_up,
        )

    @property
    def decoding(self) -> bool:
        """Decode steps are left."""
        return self.begun < self.steps

    def amend(self, change: commands.Amend) -> None:
        """Shrink, extend, end, join, leave; a further grant."""
        if change.steps is not None:
            self.steps = change.steps
            self.ended = self.ended or change.steps == 0
        for key in change.leave:
            self.drop(key)
        for key in change.join:
            self.decode[key] = None
            self.together = None
        self.grant += change.slabs

    def drop(self, key: SeqId) -> None:
        """Remove this sequence from the turn."""
        self.decode.pop(key, None)
        self.together = None
        self.prefill = [part for part in self.prefill if part.key != key]

    def starve(self, sequence: Sequence) -> None:
        """Remove a sequence that cannot grow from the turn; it keeps its KV."""
        self.progress.note(replace(standing(sequence), starved=True))
        self.drop(sequence.key)

    def end(self, sequence: Sequence, finish: Finish, reason: str = "", failure: FailureKind | None = None) -> None:
        """End a sequence after its last token, or with an error, its reason and kind."""
        self.progress.note(replace(standing(sequence), finish=finish, reason=reason, failure=failure))
        self.drop(sequence.key)

    def waiting(self) -> list[SeqId]:
        """Sequences that have something left to do in this turn."""
        return [part.key for part in self.prefill] + (list(self.decode) if self.decoding else [])
