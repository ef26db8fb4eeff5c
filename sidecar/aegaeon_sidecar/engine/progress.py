"""The counts of a turn since its last report, which TurnProgress says to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_proto.engine.ids import CommandId, InstanceId, SeqId
from aegaeon_proto.engine.reports import Memory, Progress, TurnProgress
from aegaeon_sidecar.kv.sequences import Sequence

REPORT_STEPS = 8
REPORT_S = 0.05


@dataclass(slots=True)
class TurnCounts:
    """Counts and seconds since the last report; `urgent` when the scheduler needs them at once.

    `every`: decode steps after which a report is due; its time is as many times `REPORT_S`.
    """

    turn: CommandId
    every: int = REPORT_STEPS
    last_s: float = 0.0
    steps: int = 0
    decode_s: float = 0.0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    wait_s: float = 0.0
    first_s: float = 0.0
    warm: bool = False
    batch: int = 0
    context_tokens: int = 0
    urgent: bool = False
    _advanced: list[Sequence] = field(default_factory=list)
    _noted: dict[SeqId, Progress] = field(default_factory=dict)

    def advanced(self, sequence: Sequence) -> None:
        """Note a sequence whose position changed, for the next report."""
        self._advanced.append(sequence)
        if self._noted:
            self._noted.pop(sequence.key, None)

    def note(self, standing: Progress) -> None:
        """Note how a sequence left the turn; an end or starvation is urgent."""
        self._noted[standing.seq] = standing
        self.urgent = self.urgent or standing.starved or standing.finish is not None

    def due(self, now_s: float) -> bool:
        return self.urgent or self.steps >= self.every or now_s - self.last_s >= REPORT_S * self.every / REPORT_STEPS

    def flush(self, instance: InstanceId, now_s: float, memory: Memory, end: bool) -> TurnProgress:
        """The report; everything starts again from nothing."""
        progress = {sequence.key: standing(sequence) for sequence in dict.fromkeys(self._advanced)} | self._noted
        report = TurnProgress(
            instance=instance,
            turn=self.turn,
            progress=tuple(progress.values()),
            steps=self.steps,
            decode_s=self.decode_s,
            prefill_tokens=self.prefill_tokens,
            prefill_s=self.prefill_s,
            wait_s=self.wait_s,
            batch=self.batch,
            context_tokens=self.context_tokens,
            memory=memory,
            end=end,
            first_s=self.first_s,
            warm=self.warm,
        )
        self._advanced.clear()
        self._noted.clear()
        self.last_s, self.steps, self.decode_s, self.urgent = now_s, 0, 0.0, False
        self.prefill_tokens, self.prefill_s, self.wait_s, self.first_s, self.warm = 0, 0.0, 0.0, 0.0, False
        return report


def standing(sequence: Sequence) -> Progress:
    """The position of a sequence, for a report."""
    return Progress(sequence.key, sequence.epoch, len(sequence.output), sequence.kv_tokens)
