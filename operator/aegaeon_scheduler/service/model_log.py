"""Lines of the log about what happens to a model's requests, which `kubectl aegaeon logs MODEL` finds by its name.

An observer of the driver. At most one line a model in ten seconds: it sums up, so that no client can fill a disk.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from math import inf

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import InstanceId, ModelName, SeqId

_log = logging.getLogger(__name__)
_EVERY_S, _LOOK_S = 10.0, 0.5
_REASONS = 3
_LONG_S = 2.0
"""a request that has waited for its prefill for so long is held"""


@dataclass(slots=True)
class _Summary:
    """Counts of one model since its last line."""

    written_at: float = -inf
    held: int = 0
    longest_s: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    moved: Counter[tuple[InstanceId, InstanceId]] = field(default_factory=Counter)
    recomputed: Counter[str] = field(default_factory=Counter)

    def text(self) -> str:
        """Empty where nothing has happened."""
        parts = []
        if self.held:
            parts.append(f"{self.held} waited for more than {_LONG_S:.0f} s, the longest {self.longest_s:.1f} s")
        parts += [f"{count} refused: {why}" for why, count in self.refused.items()]
        parts += [f"{count} moved from {old} to {new}" for (old, new), count in self.moved.items()]
        parts += [f"{count} computed again: {why}" for why, count in self.recomputed.most_common(_REASONS)]
        return "; ".join(parts)


class ModelLog:
    """Sequences of each model that wait, move between engines, are computed again or refused."""

    def __init__(self) -> None:
        self._models: dict[SeqId, ModelName] = {}
        self._waiting: dict[SeqId, float] = {}  # the oldest first
        self._summaries: dict[ModelName, _Summary] = {}
        self._write_at = -inf

    def __call__(self, now: float, event: events.Event, decided: list[commands.Command], seconds: float) -> None:
        """See Observer."""
        if isinstance(event, events.Submitted):
            self._models[event.seq] = event.model
            if not event.defer_s:
                self._waiting.setdefault(event.seq, now)
        for command in decided:
            match command:
                case commands.Send():
                    self._sent(command, now)
                case commands.Reject():
                    self._refused(command, now)
                case commands.SequenceLost():
                    self._lost(command)
                case commands.SequenceEnded():
                    self._forget(command.seq)
        if self._summaries and now >= self._write_at:
            self._write_at = now + _LOOK_S
            self._write(now)

    def __len__(self) -> int:
        """Sequences that it keeps something of."""
        return len(self._models)

    def _sent(self, send: commands.Send, now: float) -> None:
        body = send.body
        if isinstance(body, commands.Turn):
            for part in body.prefill:
                self._served(part.seq, now)
        elif isinstance(body, commands.Adopt) and (model := self._models.get(body.seq)):
            self._of(model).moved[body.source, send.instance] += 1

    def _served(self, seq: SeqId, now: float) -> None:
        waited_s, model = now - self._waiting.pop(seq, now), self._models.get(seq)
        if model and waited_s > _LONG_S:
            summary = self._of(model)
            summary.held += 1
            summary.longest_s = max(summary.longest_s, waited_s)

    def _refused(self, reject: commands.Reject, now: float) -> None:
        if model := self._models.get(reject.seq):
            self._served(reject.seq, now)
            self._of(model).refused[reject.code.value] += 1
        self._forget(reject.seq)

    def _lost(self, lost: commands.SequenceLost) -> None:
        if model := self._models.get(lost.seq):
            self._of(model).recomputed[lost.reason] += 1

    def _forget(self, seq: SeqId) -> None:
        self._models.pop(seq, None)
        self._waiting.pop(seq, None)

    def _of(self, model: ModelName) -> _Summary:
        return self._summaries.setdefault(model, _Summary())

    def _write(self, now: float) -> None:
        for model, summary in list(self._summaries.items()):
            if now - summary.written_at < _EVERY_S:
                continue
            if text := summary.text():
                _log.info("model %s: %s", model, text)
                self._summaries[model] = _Summary(now)
            else:
                del self._summaries[model]
