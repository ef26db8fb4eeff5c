"""A group: the live sequences of one model that share its weights in one place, and what they need.

Placed on an instance it is resident or loading; without one it waits in host memory, KV cache included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan
from typing import Protocol

from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.estimate import Estimate, Estimates
from aegaeon_scheduler.core.policies.slack.order import (
    ALIKE,
    LONE_SHARE,
    PREEMPT_SHARE,
    URGENT_SHARE,
    Kind,
    Order,
    Queue,
    Scale,
    Standing,
    Still,
    due,
    member,
    tokens,
)
from aegaeon_scheduler.core.policies.slack.residency import may_leave, node_of, pinned
from aegaeon_scheduler.core.state import Instance, Model, Sequence


class Holder(Protocol):
    """Where a group is, or waits: keeps what it computed from it until it has changed."""

    def changed(self, group: Group) -> None:
        """Marks what was computed from it as out of date."""
        ...


class Group(Batch):
    """`prompts` are the members whose prefill is still to be issued, first come first served; `queues`
    are those of each tier and tenant, deferred ones separately."""

    __slots__ = (
        "_behind", "_due", "_loads", "_order", "_size", "_until", "inst", "kind", "members", "model", "number",
        "prompts", "queues", "scale", "served", "since", "standing", "still", "watcher",
    )  # fmt: skip

    def __init__(self, model: Model, kind: Kind, number: int, standing: Standing) -> None:
        self.model = model
        self.standing = standing
        self.kind = kind
        self.number = number
        self.inst: Instance | None = None
        self.members: dict[SeqId, Sequence] = {}
        self.prompts: dict[SeqId, Sequence] = {}
        self.queues: dict[Queue, dict[SeqId, Sequence]] = {}
        self.still: Still | None = None
        self.since = inf  # seconds; when it was first ready to run where it is
        self.served = -inf  # seconds; when it was last given a turn
        self.scale = ALIKE
        self.watcher: Holder | None = None
        self._size: tuple[int, int] | None = None
        self._due = inf, 0, 0
        self._order = Order(inf, inf, inf)
        self._until = -inf
        self._behind = 0.0
        self._loads: dict[tuple[str, int], Load] = {}

    def enqueue(self, seq: Sequence, first: bool = False) -> None:
        """A member's prompt waits, behind the others or before them. Idempotent."""
        if seq.id in self.prompts:
            return
        row = member(seq)
        self.prompts = _with(self.prompts, seq, first)
        self.queues[row.queue] = _with(self.queues.get(row.queue, {}), seq, first)
        self.standing.clock(row.queue).arrive(seq.tenant, row.cost_s, seq.terms.weight)

    def dequeue(self, seq: Sequence) -> None:
        """A member's prompt waits no longer. Idempotent."""
        if self.prompts.pop(seq.id, None) is not None:
            row = member(seq)
            del self.queues[row.queue][seq.id]
            if not self.queues[row.queue]:
                del self.queues[row.queue]
            self.standing.clock(row.queue).depart(seq.tenant, row.cost_s)

    def changed(self) -> None:
        """Marks all that was computed from what a member has, or from what the group's model is, as out of date."""
        if self._until != -inf or self._size is not None or self._loads:
            self.remade()

    def remade(self) -> None:
        """Marks all that was computed from the group's members as out of date."""
        self._until, self._behind, self._size = -inf, nan, None
        self.refined()

    def refined(self) -> None:
        """Marks what the group needs of an instance as out of date, its members being as before."""
        self._loads.clear()
        if self.watcher is not None:
            self.watcher.changed(self)

    def deferred(self) -> bool:
        """Returns whether all of it runs on what others leave: it takes no share of an instance's time."""
        return self.standing.ranked and all(seq.deferred for seq in self.members.values())

    def may_go(self, inst: Instance) -> bool:
        """Returns whether its kind, its model and its members' adapters allow it on an instance."""
        if self.model.without and any(inst.lacks(seq) for seq in self.members.values()):
            return False
        return inst.role in self.kind.roles and inst.has(self.model)

    def node(self) -> str | None:
        """Returns the node of its instance, or that has its KV; None when it may go anywhere."""
        return self.inst.node if self.inst is not None else node_of(self.members)

    def may_leave(self, begun: bool = False) -> bool:
        """See residency.may_leave; False while it waits."""
        return self.inst is not None and may_leave(self.members, self.inst, begun)

    def ready(self) -> bool:
        """Returns whether its weights are on its instance."""
        weights = self.inst.weights.get(self.model.name) if self.inst is not None else None
        return weights is not None and weights.ready and weights.unload is None

    def urgency(self, now: float, late_s: float) -> tuple[float, int]:
        """When its most urgent token is due (seconds), how many members are in time; in-flight turns count as run.

        Late sequences do not drive the order: together they stand for a deadline `late_s` from now.
        """
        if now > self._until or self.model.pools:
            self._due = self._soonest(now)
            self._until = self._due[0]
        best, late, alive = self._due
        return (min(best, now + late_s) if late else best), alive

    def presses(self, now: float, late_s: float) -> bool:
        """Returns whether half of TTFT is used up, or of what its readers were ahead."""
        key, _ = self.urgency(now, late_s)
        return key - now < URGENT_SHARE * self.model.config.slo.ttft_s

    def late(self, now: float) -> bool:
        """Returns whether all of it is late: its key, which is never near, is no reason to let it wait for ever."""
        return self.urgency(now, 0.0)[1] == 0

    def _soonest(self, now: float) -> tuple[float, int, int]:
        """When the most urgent member in time is due, until when all of this holds; how many are late, and in time."""
        if self.still is not None:
            return self.still.soonest(now)
        slo = self.model.config.slo
        ttft_s, tbt_s = slo.ttft_s, slo.tbt_s
        best, late = inf, 0
        members = self.prompts if self.model.pools else self.members  # what ends with its prompt is due no more
        for seq in members.values():
            made = seq.projected_kv - seq.prompt_tokens
            output = made + 1 if made >= seq.prefix_tokens and seq.projected_kv else seq.output_tokens
            due = member(seq).due_from + ttft_s + output * tbt_s
            if due < now:
                late += 1
            elif due < best:
                best = due
        return best, late, len(self.members) - late

    @property
    def ttft_s(self) -> float:
        """Its TTFT in seconds of rank."""
        return self.model.config.slo.ttft_s * self.scale.factor

    def rescale(self, scale: Scale) -> None:
        """Its slack counts for something else than before."""
        self.scale, self._order = scale, Order(inf, inf, inf)

    def order(self, now: float, settings: SlackSettings) -> Order:
        """Its key, and its rank: its slack, scaled, from now on; later by what its model is behind, and the fewer share
        its steps in time."""
        if now > self._order.until or self._behind != self.standing.behind:
            key, alive = self.urgency(now, settings.late_slack_s)
            self._behind, scale, ttft_s = self.standing.behind, self.scale, self.ttft_s
            in_time = key == self._due[0]  # else it moves with the time: late ones come first
            rank = key if scale is ALIKE else now + (scale.rank_s(key - now) if in_time else scale.late_s)
            rank += self._behind * scale.factor
            rank += LONE_SHARE * ttft_s / alive if alive else 0.0
            least = rank + PREEMPT_SHARE * ttft_s
            until = -inf if self.model.pools else key if in_time else now
            exact = until if scale is ALIKE or until == -inf else now
            self._order = Order(key, rank, least, exact, until)
        return self._order

    def load(self, estimates: Estimates, inst: Instance) -> Load:
        """Returns what it needs of an instance."""
        make = inst.device, inst.slab_bytes
        load = self._loads.get(make)
        if load is None or load.outdated() or self.model.pools:
            load = self._loads[make] = Load.of(self, estimates, inst)
        return load

    def agrees(self, now: float) -> bool:
        """Returns whether its kept state is what would be computed."""
        known = now > self._until or self.model.pools or self._due == self._soonest(now)
        return known and (self._size is None or self._size == self._measure())

    def out_of_reach(self, now: float, limits: Mapping[str | None, tuple[float, float]]) -> bool:
        """Returns whether its kept state says that it needs more room than its node has (None: all of them), and
        preempts nothing up to the latest rank there. A pass asks this of all that wait."""
        still, order = self.still, self._order
        if still is None or now > order.rises_until or self._behind != self.standing.behind:
            return False
        room, most = limits.get(still.node, (-inf, -inf))
        return still.nbytes > room and most <= order.least

    def size(self) -> tuple[int, int]:
        """Tokens of context and blocks of KV, prompts that wait included."""
        if self.still is not None:
            return self.still.context, self.still.blocks
        if self._size is None:
            self._size = self._measure()
        return self._size

    def _measure(self) -> tuple[int, int]:
        per = self.model.fp.kv_block_tokens
        context = blocks = 0
        for seq in self.members.values():
            length, kv = seq.prompt_tokens + seq.prefix_tokens, seq.projected_kv  # `tokens` in place: asked for often
            length = kv if kv > length else length
            context += length
            blocks += -(-length // per)
        return context, blocks

    def prompts_s(self, estimates: Estimates, inst: Instance) -> float:
        """Seconds that its prompts take on an instance."""
        estimate = estimates.of(self.model.name, inst.device)
        if self.model.pools and self.prompts:  # computed together
            spans = [(seq.projected_kv, seq.unissued_tokens) for seq in self.prompts.values()]
            count, squares = sum(left for _, left in spans), sum((done + left) ** 2 - done**2 for done, left in spans)
            passes = max(-(-count // estimates.pooled_tokens), -(-len(spans) // inst.max_batch))
            return estimate.together_s(count, squares, passes)
        return sum(estimate.part_s(*seq.to_compute(inst)) for seq in self.prompts.values())

    def rest(self) -> Still | None:
        """Values that do not change while it waits and no member joins or leaves; None while copies of it are in
        flight.

        One whose members are on a device is about to be copied out: that is not kept.
        """
        if self.still is not None or any(seq.copy is not None for seq in self.members.values()):
            return self.still
        context, blocks = self.size()
        dues = sorted(due(seq) for seq in self.members.values())
        longest = max((tokens(seq) for seq in self.members.values()), default=0)
        fp = self.model.fp
        nbytes = fp.weight_bytes + blocks * fp.kv_block_bytes
        still = Still(dues, context, blocks, nbytes, longest, pinned(self.members), self.node())
        if still.only is None:
            self.still = still
        return still


def _with(prompts: dict[SeqId, Sequence], seq: Sequence, first: bool) -> dict[SeqId, Sequence]:
    if first:
        return {seq.id: seq, **prompts}
    prompts[seq.id] = seq
    return prompts


@dataclass(slots=True, init=False)
class Load:
    """A group's demand of an instance: share of its time (`util`), bytes, when it is due (`key`), and its `rank`.

    Of a model that pools, the share is that of what its prompts may take; it has no steps.
    `weights` of its `nbytes` are weights, the others KV.
    """

    group: Group
    util: float
    nbytes: int
    weights: int
    estimate: Estimate
    revision: int  # of the estimate
    key: float
    rank: float
    until: float  # key and rank hold, unless the group changes

    def __init__(self, group: Group, util: float, nbytes: int, weights: int, estimate: Estimate) -> None:
        self.group, self.util, self.nbytes, self.weights = group, util, nbytes, weights
        self.estimate, self.revision = estimate, estimate.revision
        self.key = self.rank = inf
        self.until = -inf

    def outdated(self) -> bool:
        """Returns whether steps are estimated to take another time than when it was measured."""
        return self.revision != self.estimate.revision

    @staticmethod
    def of(group: Group, estimates: Estimates, inst: Instance) -> Load:
        """Measure a group as if on this instance; when it is due is to be noted."""
        model, (context, blocks) = group.model, group.size()
        fp, slo = model.fp, model.config.slo
        estimate = estimates.of(model.name, inst.device)
        if model.pools:
            util = group.prompts_s(estimates, inst) / max(slo.ttft_s, 1e-9)
        elif group.deferred():
            util = 0.0
        else:
            step_s = estimate.step_s(context, len(group.members))
            util = step_s / max(slo.tbt_s, 1e-9)
        weights = fp.weight_slabs * inst.slab_bytes
        nbytes = weights + blocks * fp.kv_block_bytes
        return Load(group, util, nbytes, weights, estimate)

    def note(self, now: float, settings: SlackSettings) -> Load:
        """When it is due, as of now."""
        self.key, self.rank, _, self.until, _ = self.group.order(now, settings)
        return self
