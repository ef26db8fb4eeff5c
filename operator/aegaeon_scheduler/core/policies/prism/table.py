"""Which sequences are where: batches of one model on one instance, and what waits for an instance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from aegaeon_scheduler.core.batch import Batch as SharedTurns
from aegaeon_scheduler.core.domain import InstanceId, SeqId
from aegaeon_scheduler.core.state import Instance, Model, Sequence, Weights


def has_weights(inst: Instance, model: Model) -> bool:
    """Returns whether a model's weights are loaded on an instance and not about to go."""
    weights = inst.weights.get(model.name)
    return weights is not None and weights.ready and weights.unload is None


@dataclass(slots=True, eq=False, repr=False)
class Batch(SharedTurns):
    """The live sequences of one model on one instance. `prompts`: those not issued whole, first come first."""

    model: Model
    inst: Instance
    members: dict[SeqId, Sequence] = field(default_factory=dict)
    prompts: dict[SeqId, Sequence] = field(default_factory=dict)

    def ready(self) -> bool:
        """Returns whether the batch's weights are loaded."""
        return has_weights(self.inst, self.model)

    def due(self) -> float:
        """When the first of its next tokens is due."""
        return min(seq.deadline() for seq in self.members.values())


@dataclass(slots=True, eq=False, repr=False)
class Engine:
    """The policy's state of an instance. `batches`: the one that decodes next comes first.

    `in_a_row`: prompts since the last decode turn. `pressed`: nothing can run unless a model in use is unloaded.
    """

    inst: Instance
    batches: dict[Model, Batch] = field(default_factory=dict)
    idle_since: dict[Model, float] = field(default_factory=dict)
    in_a_row: int = 0
    pressed: bool = False

    def unused(self) -> list[Weights]:
        """Weights that no sequence here needs."""
        weights = self.inst.weights.values()
        return [w for w in weights if w.ready and w.unload is None and w.model not in self.batches]

    def room(self, without: Model | None = None) -> int:
        """Slabs that are free, or would be without the weights that no sequence here needs, but those of one model."""
        return self.inst.book.free() + sum(weights.slabs for weights in self.unused() if weights.model is not without)

    def idle_shares(self, now: float) -> dict[Model, float]:
        """For how many times its TTFT each of these has been idle: what has been so for longest is evicted first."""
        idle = {}
        for weights in self.unused():
            model = weights.model
            idle[model] = (now - self.idle_since.get(model, -inf)) / max(model.config.slo.ttft_s, 1e-9)
        self.idle_since = {model: at for model, at in self.idle_since.items() if model in idle}
        return idle

    def turn_over(self, batch: Batch) -> None:
        """Ends a batch's turn: the others come first."""
        if self.batches.pop(batch.model, None) is not None:
            self.batches[batch.model] = batch


class Table:
    """Owner of engines, batches and what is pending. A sequence is in one batch, or pending, or not here."""

    def __init__(self) -> None:
        self.engines: dict[InstanceId, Engine] = {}
        self.pending: dict[Model, dict[SeqId, Sequence]] = {}
        self._batches: dict[Model, dict[InstanceId, Batch]] = {}

    def engine(self, inst: Instance) -> Engine:
        """The row of an instance."""
        engine = self.engines.get(inst.id)
        if engine is None:
            engine = self.engines[inst.id] = Engine(inst)
        return engine

    def batch(self, seq: Sequence) -> Batch | None:
        """The one that it is in."""
        return seq.batch if isinstance(seq.batch, Batch) else None

    def batches(self, model: Model) -> Iterator[Batch]:
        """All of a model."""
        return iter(self._batches.get(model, {}).values())

    def live(self) -> list[Model]:
        """Models with sequences on an instance."""
        return list(self._batches)

    def join(self, seq: Sequence, inst: Instance, now: float) -> Batch:
        """Into the batch of its model there; it leaves every other one, and the line."""
        self.leave(seq, now)
        engine, model = self.engine(inst), seq.model
        batch = engine.batches.get(model)
        if batch is None:
            batch = engine.batches[model] = Batch(model, inst)
            self._batches.setdefault(model, {})[inst.id] = batch
        batch.members[seq.id] = seq
        seq.batch = batch
        return batch

    def wait(self, seq: Sequence) -> None:
        """No instance has room for its model."""
        self.pending.setdefault(seq.model, {})[seq.id] = seq

    def leave(self, seq: Sequence, now: float) -> None:
        """Removes a sequence from its batch and from those that wait. Its model may be idle from now on."""
        waiting = self.pending.get(seq.model)
        if waiting is not None and waiting.pop(seq.id, None) is not None and not waiting:
            del self.pending[seq.model]
        batch, seq.batch = self.batch(seq), None
        if batch is None:
            return
        batch.members.pop(seq.id, None)
        batch.prompts.pop(seq.id, None)
        if not batch.members:
            self._end(batch, now)

    def _end(self, batch: Batch, now: float) -> None:
        of = self._batches[batch.model]
        del of[batch.inst.id]
        if not of:
            del self._batches[batch.model]
        engine = self.engines.get(batch.inst.id)
        if engine is not None and engine.batches.get(batch.model) is batch:
            del engine.batches[batch.model]
            engine.idle_since[batch.model] = now

    def check(self) -> list[str]:
        """Both ends of each link."""
        differences = []
        for engine in self.engines.values():
            wrong = (b for b in engine.batches.values() if not b.members or not b.prompts.keys() <= b.members.keys())
            differences += [f"{engine.inst.id}: a batch of {batch.model.name} lists what it has not" for batch in wrong]
        return differences
