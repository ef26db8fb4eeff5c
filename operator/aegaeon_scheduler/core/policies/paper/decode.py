"""Algorithm 2: batched weighted round-robin. A round gives each batch of an instance one turn, batches of one model
side by side, with lengths that share the slack of their token deadlines."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from aegaeon_scheduler.core.batch import Batch as SharedTurns
from aegaeon_scheduler.core.config import PaperSettings
from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.policies.paper.quota import quotas
from aegaeon_scheduler.core.state import Instance, Model, Sequence


@dataclass(slots=True, eq=False, repr=False)
class Batch(SharedTurns):
    """Sequences of one model that decode together on one instance; `share` is step time over token time."""

    model: Model
    inst: Instance
    work: WorkList
    members: dict[SeqId, Sequence] = field(default_factory=dict)
    quota_s: float = 0.0
    share: float = 0.0

    def context_tokens(self) -> int:
        """Tokens of KV over its members."""
        return sum(s.kv_tokens for s in self.members.values())


@dataclass(slots=True, eq=False, repr=False)
class WorkList:
    """The batches of one instance and what is left of the round; `load` is the sum of their shares."""

    batches: list[Batch] = field(default_factory=list)
    round: deque[Batch] = field(default_factory=deque)
    load: float = 0.0

    def add(self, batch: Batch) -> None:
        """A new batch goes beside those of its model, else to the end."""
        at = max((i for i, b in enumerate(self.batches) if b.model is batch.model), default=len(self.batches) - 1)
        self.batches.insert(at + 1, batch)

    def drop(self, batch: Batch) -> None:
        """An empty batch leaves."""
        self.batches.remove(batch)
        if batch in self.round:
            self.round.remove(batch)
        self.load = self.load - batch.share if self.batches else 0.0

    def weigh(self, batch: Batch, share: float) -> None:
        """Its share of the compute lane has changed."""
        self.load += share - batch.share
        batch.share = share

    def start_round(self, inst: Instance, estimates: Estimates, settings: PaperSettings) -> None:
        """Quotas by Eq. 2-3 for the batches as they are now."""
        self.round = deque(self.batches)
        steps, tbts, switch_s = [], [], 0.0
        seen: dict[str, float] = {}
        for batch in self.batches:
            estimate = estimates.of(batch.model.name, inst.device)
            steps.append(estimate.step_s(batch.context_tokens(), len(batch.members)))
            tbts.append(batch.model.config.slo.tbt_s)
            seen.setdefault(batch.model.name, load_ahead_s(inst, batch.model, estimates))
        switch_s = sum(seen.values())
        lengths = quotas(steps, tbts, switch_s, settings.q_max_s, settings.alpha_floor)
        shortest = min(settings.min_quota_s, settings.q_max_s)
        for batch, quota_s in zip(self.batches, lengths, strict=True):
            resident = switch_s <= 0 or len(lengths) == 1
            batch.quota_s = settings.resident_quota_s if resident else max(quota_s, shortest)

    def quota_s(self, batch: Batch, estimates: Estimates) -> float:
        """The batch's turn, not shorter than the load of the model after it, so that prefetch hides it."""
        after = self._after(batch)
        if after is None or after.model is batch.model:
            return batch.quota_s
        return max(batch.quota_s, load_ahead_s(batch.inst, after.model, estimates))

    def _after(self, batch: Batch) -> Batch | None:
        if len(self.round) > 1:
            return self.round[1]
        return self.batches[0] if len(self.batches) > 1 and self.batches[0] is not batch else None


def load_ahead_s(inst: Instance, model: Model, estimates: Estimates) -> float:
    """Seconds to load the model here; 0 when it is resident."""
    weights = inst.weights.get(model.name)
    if weights is not None and weights.unload is None:
        return 0.0
    return estimates.of(model.name, inst.device).load_s(model.fp.weight_bytes)
