"""Needs and due times of a sequence, in-flight turns counted as run."""

from __future__ import annotations

from typing import cast

from aegaeon_scheduler.core.book import blocks_for, least_slabs
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Row, Sequence


class Member(Row):
    """A sequence of a group: from when its deadlines count (seconds), at its promise or later, and its place in the
    queue of prompts: by arrival, until a priority of its tenant moves it."""

    __slots__ = ("due_from", "queue_place")

    def __init__(self, seq: Sequence) -> None:
        self.due_from = seq.promised_from
        self.queue_place = seq.order


def member(seq: Sequence) -> Member:
    """The policy's row of a sequence that is in a group."""
    return cast(Member, seq.row)


class Standing:
    """The rank of a model beside others while it has groups: seconds that it is `behind` its deadlines, of these
    `tier_s` for its tier; `greed` is 0 to 1, how many times its part of the engines it holds.

    `weighed`: weights of models differ, so that they share out the time. `ranked`: some of its requests were deferred
    or had a priority.
    """

    __slots__ = ("behind", "greed", "ranked", "tier_s", "weighed")

    def __init__(self) -> None:
        self.behind = self.tier_s = self.greed = 0.0
        self.weighed = self.ranked = False


def tokens(seq: Sequence) -> int:
    """Tokens of context that it has or, before its prefill, will have."""
    return max(seq.projected_kv, seq.prompt_tokens + seq.prefix_tokens)


def too_small(pool: Pool, inst: Instance, model: Model, length: int) -> bool:
    """Returns whether a sequence of this length does not fit the instance, empty as it may be, but fits another one."""
    if _holds(inst, model, length):
        return False
    return any(_holds(i, model, length) for i in pool.fleet.of(model).open)


def _holds(inst: Instance, model: Model, length: int) -> bool:
    return model.footprint is None or least_slabs(model.fp, length + 1, inst.slab_bytes) <= inst.slabs


def planned_output(seq: Sequence) -> int:
    """Output tokens that it will have when all in-flight turns have run."""
    made = seq.projected_kv - seq.prompt_tokens
    return made + 1 if made >= seq.prefix_tokens and seq.projected_kv else seq.output_tokens


def due(seq: Sequence) -> float:
    """When its next token is due, in-flight turns counted as run."""
    slo = seq.model.config.slo
    return member(seq).due_from + slo.ttft_s + planned_output(seq) * slo.tbt_s


def priced(seq: Sequence) -> bool:
    """Returns whether a sequence is due later than was promised, for what its prompt takes."""
    return member(seq).due_from > seq.promised_from


def kv_blocks(seq: Sequence) -> int:
    """KV blocks that it has or, before its prefill, will need."""
    tokens = max(seq.kv_tokens, seq.projected_kv, seq.prompt_tokens + seq.prefix_tokens)
    return blocks_for(seq.model.fp, tokens)
