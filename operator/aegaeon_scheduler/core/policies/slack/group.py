"""A group: the live sequences of one model that share its weights in one place, and what they need.

Placed on an instance it is resident or loading; without one it waits in host memory, KV cache included.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import NamedTuple

from aegaeon_scheduler.core.book import blocks_for, least_slabs
from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Place, Role, SeqId
from aegaeon_scheduler.core.estimate import Estimates
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Sequence, Stage


class Kind(Enum):
    """What a group does: `roles` are those of the instances that it may be placed on."""

    WHOLE = (Role.UNIFIED,)
    PROMPTS = (Role.PREFILL,)
    DECODES = (Role.DECODE, Role.UNIFIED)

    def __init__(self, *roles: Role) -> None:
        self.roles = roles


@dataclass(slots=True)
class Still:
    """A group at rest: deadlines in order, tokens of context, KV blocks; the instance and the node it is bound to.

    `longest`: tokens of its longest member.
    """

    dues: list[float]
    context: int
    blocks: int
    longest: int
    only: Instance | None
    node: str | None

    def urgency(self, now: float, late_s: float) -> tuple[float, int]:
        """See Group.urgency."""
        at = bisect_left(self.dues, now)
        alive = len(self.dues) - at
        best = self.dues[at] if alive else inf
        return (min(best, now + late_s) if at else best), alive


class Order(NamedTuple):
    """Seconds on the scheduler's clock: when a group's most urgent token is due, and what it is sorted by."""

    key: float
    rank: float


class Group:
    """`prompts` are the members whose prefill is still to be issued, first come first served."""

    __slots__ = ("inst", "kind", "members", "model", "number", "prompts", "since", "still", "target")

    def __init__(self, model: Model, kind: Kind, number: int) -> None:
        self.model = model
        self.kind = kind
        self.number = number
        self.inst: Instance | None = None
        self.members: dict[SeqId, Sequence] = {}
        self.prompts: dict[SeqId, Sequence] = {}
        self.still: Still | None = None
        self.since = inf  # seconds; when it was first ready to run where it is
        self.target: Instance | None = None  # where a move is to end

    def may_go(self, inst: Instance) -> bool:
        """Whether its kind and model allow it there."""
        return inst.role in self.kind.roles and inst.has(self.model)

    def ready(self) -> bool:
        """Whether its weights are on its instance."""
        weights = self.inst.weights.get(self.model.name) if self.inst is not None else None
        return weights is not None and weights.ready and weights.unload is None

    def urgency(self, now: float, late_s: float) -> tuple[float, int]:
        """When its most urgent token is due (seconds), how many members are in time; in-flight turns count as run.

        Late sequences do not drive the order: together they stand for a deadline `late_s` from now.
        """
        if self.still is not None:
            return self.still.urgency(now, late_s)
        slo = self.model.config.slo
        ttft_s, tbt_s = slo.ttft_s, slo.tbt_s
        best, late = inf, 0
        members = self.prompts if self.model.pools else self.members  # what ends with its prompt is due no more
        for seq in members.values():
            made = seq.projected_kv - seq.prompt_tokens
            output = made + 1 if made >= seq.prefix_tokens and seq.projected_kv else seq.output_tokens
            due = seq.arrival + ttft_s + output * tbt_s
            if due < now:
                late += 1
            elif due < best:
                best = due
        return (min(best, now + late_s) if late else best), len(self.members) - late

    def order(self, now: float, settings: SlackSettings) -> Order:
        """Its key, and its rank: the key, later by what its model is behind, and the fewer share its steps in time."""
        key, alive = self.urgency(now, settings.late_slack_s)
        rank = key + self.model.behind
        return Order(key, rank + settings.lone_share * self.model.config.slo.ttft_s / alive if alive else rank)

    def size(self) -> tuple[int, int]:
        """Tokens of context and blocks of KV, prompts that wait included."""
        if self.still is not None:
            return self.still.context, self.still.blocks
        per = self.model.fp.kv_block_tokens
        context = blocks = 0
        for seq in self.members.values():
            length = max(seq.projected_kv, seq.prompt_tokens + seq.prefix_tokens)  # `tokens` in place: asked for often
            context += length
            blocks += -(-length // per)
        return context, blocks

    def prompts_s(self, estimates: Estimates, inst: Instance) -> float:
        """Seconds that its prompts take on an instance."""
        estimate = estimates.of(self.model.name, inst.device)
        return sum(estimate.part_s(seq.projected_kv, seq.unissued_tokens) for seq in self.prompts.values())

    def rest(self) -> Still | None:
        """What does not change while it waits and no member joins or leaves; None while copies of it are in flight.

        One whose members are on a device is about to be copied out: that is not kept.
        """
        if self.still is not None or any(seq.copy is not None for seq in self.members.values()):
            return self.still
        context, blocks = self.size()
        dues = sorted(due(seq) for seq in self.members.values())
        longest = max((tokens(seq) for seq in self.members.values()), default=0)
        still = Still(dues, context, blocks, longest, _pinned(self), node_of(self))
        if still.only is None:
            self.still = still
        return still


def tokens(seq: Sequence) -> int:
    """Tokens of context that it has or, before its prefill, will have."""
    return max(seq.projected_kv, seq.prompt_tokens + seq.prefix_tokens)


def too_small(pool: Pool, inst: Instance, model: Model, length: int) -> bool:
    """Whether a sequence of this length does not fit the instance, empty as it may be, but fits another one."""
    if _holds(inst, model, length):
        return False
    return any(i.has(model) and _holds(i, model, length) for i in pool.instances.values())


def _holds(inst: Instance, model: Model, length: int) -> bool:
    return model.footprint is None or least_slabs(model.fp, length + 1, inst.slab_bytes) <= inst.slabs


def planned_output(seq: Sequence) -> int:
    """Output tokens that it will have when all in-flight turns have run."""
    made = seq.projected_kv - seq.prompt_tokens
    return made + 1 if made >= seq.prefix_tokens and seq.projected_kv else seq.output_tokens


def due(seq: Sequence) -> float:
    """When its next token is due, in-flight turns counted as run."""
    slo = seq.model.config.slo
    return seq.arrival + slo.ttft_s + planned_output(seq) * slo.tbt_s


def kv_blocks(seq: Sequence) -> int:
    """KV blocks that it has or, before its prefill, will need."""
    tokens = max(seq.kv_tokens, seq.projected_kv, seq.prompt_tokens + seq.prefix_tokens)
    return blocks_for(seq.model.fp, tokens)


@dataclass(slots=True)
class Load:
    """What a group asks of an instance: share of its time (`util`), bytes, when it is due (`key`), and its `rank`.

    Of a model that pools, the share is that of what its prompts may take; it has no steps.
    `weights` of its `nbytes` are weights, the others KV.
    """

    group: Group
    key: float
    rank: float
    util: float
    nbytes: int
    weights: int

    @property
    def slack(self) -> float:
        """What groups are compared by where memory is short, however many share a step."""
        return self.key + self.group.model.behind

    @staticmethod
    def of(group: Group, now: float, settings: SlackSettings, estimates: Estimates, inst: Instance) -> Load:
        """Measure a group as if on this instance."""
        fp = group.model.fp
        context, blocks = group.size()
        slo = group.model.config.slo
        if fp.pools:
            util = group.prompts_s(estimates, inst) / max(slo.ttft_s, 1e-9)
        else:
            step_s = estimates.of(group.model.name, inst.device).step_s(context, len(group.members))
            util = step_s / max(slo.tbt_s, 1e-9)
        key, rank = group.order(now, settings)
        weights = fp.weight_slabs * inst.slab_bytes
        return Load(group, key, rank, util, weights + blocks * fp.kv_block_bytes, weights)


def _pinned(group: Group) -> Instance | None:
    """The only instance that can go on with it: its KV is on a device, or on a host tier without a handle."""
    for seq in group.members.values():
        if seq.place is Place.DEVICE or (seq.place is Place.HOST and seq.handle_of is None):
            return seq.home
    return None


def node_of(group: Group) -> str | None:
    """The node of its instance, or that has its KV, also when that is about to leave a device, or is
    handed over and not adopted yet; None when it may go anywhere."""
    if group.inst is not None:
        return group.inst.node
    members = group.members.values()
    return next((s.home.node for s in members if s.home is not None and _has_kv(s)), None)


def _has_kv(seq: Sequence) -> bool:
    """Whether it has KV, or will have when what is under way has ended."""
    return seq.place is not Place.NONE or seq.source is not None or seq.copy is not None


def may_leave(group: Group, begun: bool = False) -> bool:
    """Whether every member can leave once its turns are over: no copy under way, host room for all.

    With `begun` also one with a prompt just begun. Between equals that one stays: a group that has paid for its place
    works off its prompts, else under overload all take turns and come late.
    """
    inst = group.inst
    if inst is None:
        return False
    blocks = 0
    for seq in group.members.values():
        first = seq.stage is Stage.PREFILL and seq.place is Place.NONE
        if seq.copy is not None or (first and not begun):
            return False
        if seq.place is Place.DEVICE or seq.turns:
            blocks += kv_blocks(seq)
    return not blocks or inst.book.host_room(group.model.fp, blocks)
