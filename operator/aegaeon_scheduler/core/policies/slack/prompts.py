"""Chooses the prompt of a group that is computed next: the oldest in time, of the tenant that has had least where
another one is greedy; and whether decode steps of the group come before it.

A long prompt is computed in parts, each no longer than the slack of what else waits here: between them others run, and
its KV stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import inf

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.core.phases import STAGE_DECODE
from aegaeon_scheduler.core.policies import Proposal
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import LITTLE_SHARE, URGENT_SHARE, Queue, due, in_order, member, priced
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Sequence

Ordered = list[tuple[float, Group]]
"""groups of an instance, smallest rank first, each with the time at which its most urgent token is due"""


class Prompts:
    """Proposes turns for prompts. KV that was preempted half-made it asks for in `Instance.incoming`."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table) -> None:
        self._pool = pool
        self._settings = settings
        self._table = table

    def next(self, inst: Instance, group: Group, order: Ordered, now: float) -> Proposal | None:
        """Its first prompt that can run, or the part of it that is next."""
        seq = self._first(inst, group, now)
        if seq is None:
            return None
        tokens = self._part(inst, group, seq, order, now)
        if not self._fits(inst, group, seq, tokens):
            return None
        slack_s = order[0][0] - now
        alone = tokens or seq.projected_kv or not group.model.pools
        prompts = (seq,) if alone else self._together(inst, group, seq, now)
        what = f"{tokens} tokens of a long prompt" if tokens else "prompt" if len(prompts) == 1 else "prompts"
        return Proposal(
            group.model, prompts, [], 0, f"{what} of the group that is next, slack {slack_s:.3g} s", group, tokens
        )

    def _together(self, inst: Instance, group: Group, first: Sequence, now: float) -> tuple[Sequence, ...]:
        """The first prompt of a model that generates nothing, and those that are computed in the same pass: it reads
        all weights for one text or for many. In all they take as long as a part of a long prompt, and they fit.
        """
        estimates, fp, free = self._pool.estimates, group.model.fp, inst.book.free()
        estimate = estimates.of(group.model.name, inst.device)
        chosen, tokens = [first], first.unissued_tokens
        squares, blocks = tokens * tokens, blocks_for(fp, tokens)
        order = in_order(group.prompts, group.standing.ranked)
        for seq in sorted(order, key=lambda seq: _stands_back(group, seq, now)):
            if seq is first or seq.copy is not None or seq.away or seq.projected_kv:
                continue
            more = seq.unissued_tokens
            tokens, squares, blocks = tokens + more, squares + more * more, blocks + blocks_for(fp, more)
            long = tokens > estimates.pooled_tokens or estimate.together_s(tokens, squares) > self._settings.part_s
            if long or inst.book.slabs_for(fp, blocks) >= free or len(chosen) == inst.max_batch:
                break
            chosen.append(seq)
        return tuple(chosen)

    def _first(self, inst: Instance, group: Group, now: float) -> Sequence | None:
        """First come first served, those in time before late ones, of those whose KV is here; long ones when due.

        What was preempted half-made is brought back.
        """
        for prompts in self._by_tier(group):
            seq = self._oldest(inst, group, prompts, now)
            if seq is not None and len(group.queues) > 1 and self._greedy(group, member(seq).queue):
                seq = self._fair(inst, group, member(seq).queue, now) or seq
            if seq is not None:
                return seq
        return None

    def _by_tier(self, group: Group) -> Iterable[Mapping[SeqId, Sequence]]:
        """Prompts of each tier, the upper ones first, be they late or in time; deferred ones behind all others."""
        if not group.standing.tiered:
            return (group.prompts,)
        levels: dict[tuple[bool, int], dict[SeqId, Sequence]] = defaultdict(dict)
        for seq in group.prompts.values():
            levels[seq.deferred, seq.terms.tier.level][seq.id] = seq
        return [levels[level] for level in sorted(levels)]

    def _fair(self, inst: Instance, group: Group, like: Queue, now: float) -> Sequence | None:
        """Returns the first prompt of the tenant that has had least. Late ones of greedy tenants come behind all that
        are in time."""
        late: Sequence | None = None
        for tenant in group.standing.clock(like).order():
            key = like[0], tenant
            seq = self._oldest(inst, group, group.queues[key], now) if key in group.queues else None
            if seq is not None and not (_stands_back(group, seq, now) and self._greedy(group, key)):
                return seq
            late = late or seq
        return late

    def _greedy(self, group: Group, key: Queue) -> bool:
        """Returns whether prompts of a tenant that wait keep those of other tenants waiting for long."""
        clock, first = group.standing.clock(key), next(iter(group.queues[key].values()))
        lead_s = clock.lead(key[1], member(first).cost_s)
        limit_s = LITTLE_SHARE * group.model.config.slo.ttft_s * len(self._table.of(group.model))
        return clock.active > 1 and lead_s * clock.weight > limit_s

    def _oldest(self, inst: Instance, group: Group, prompts: Mapping[SeqId, Sequence], now: float) -> Sequence | None:
        """First come first served, those in time before late ones, of these prompts of a group."""
        late: Sequence | None = None
        costly: Sequence | None = None
        for seq in in_order(prompts, group.standing.ranked):
            if seq.away and not inst.incoming:
                inst.incoming.append(seq)
            if seq.copy is not None or seq.away:
                continue
            if _stands_back(group, seq, now):
                late = late or seq
            elif priced(seq):
                costly = costly or seq
            else:
                return costly if costly is not None and due(costly) < due(seq) else seq
        return costly or late

    def _part(self, inst: Instance, group: Group, seq: Sequence, order: Ordered, now: float) -> int:
        """Tokens of a prompt to compute next; 0: all that is left."""
        settings, (done, left) = self._settings, seq.to_compute(inst)
        estimate = self._pool.estimates.of(group.model.name, inst.device)
        if estimate.part_s(done, left) <= settings.part_s:
            return 0
        keys = (key for key, other in order if other is not group and other.ready())
        slack_s = min(keys, default=inf) - now - settings.part_s  # the turn before it may be as long
        seconds = min(max(slack_s, 0.0), settings.part_s)
        chunk = self._pool.config.prefill_chunk_tokens
        tokens = max(chunk, estimate.part_tokens(done, seconds) // chunk * chunk)
        return tokens if tokens < left else 0

    def _fits(self, inst: Instance, group: Group, seq: Sequence, tokens: int) -> bool:
        """Returns whether there is room. A part behind another one of its prompt makes none: that one still holds a
        grant.
        """
        fp, done = group.model.fp, seq.projected_kv
        grow = tokens if done and tokens else seq.unissued_tokens
        need = inst.book.slabs_for(fp, blocks_for(fp, done + grow) - blocks_for(fp, done))
        free = inst.book.free()
        if need <= free or seq.turns:
            return need <= free
        return need <= free + sum(w.slabs for w in self._table.idle(inst))

    def limit(self, prompt: Proposal | None, group: Group, order: Ordered, now: float) -> float | None:
        """Until when (seconds) what other groups have due comes before a part of a long prompt; None: nothing of it.

        It is urgent by its own deadline, not by that of what its group decodes: they have little slack, it has more.
        """
        if prompt is None or not prompt.tokens:
            return None
        limit = min(due(prompt.prefill[0]), now + URGENT_SHARE * group.model.config.slo.ttft_s)
        keys = (key for key, other in order if other is not group and other.ready())
        return limit if min(keys, default=inf) < limit else None

    def come_behind(self, group: Group, prompt: Proposal, now: float) -> bool:
        """Returns whether decode steps of its own group come before a prompt."""
        return self._yields(group, prompt) and self._decodes_first(group, prompt, now)

    def _yields(self, group: Group, prompt: Proposal) -> bool:
        """Returns whether a prompt may come behind decode steps of its own group: a part, what is deferred, and
        one of many that together take as long as several parts.
        """
        first = prompt.prefill[0]
        return bool(prompt.tokens) or first.deferred or self._queue_is_long(group, first) or group.standing.tiered

    def _queue_is_long(self, group: Group, first: Sequence) -> bool:
        """Returns whether a group's prompts take longer than one part: in a row they would hold up what it decodes.
        Those of greedy tenants do not count, as they come behind.

        Not of a model that is late before others, nor where weights share out the time: short turns cost others time.
        """
        inst, model = group.inst, group.model
        if inst is None or len(group.prompts) < 2 or group.standing.greed or group.standing.weighed:
            return False
        estimate = self._pool.estimates.of(model.name, inst.device)
        queues = [group.prompts] if len(group.queues) < 2 else self._before_greedy(group, first)
        prompts = (seq for queue in queues for seq in queue.values())
        seconds = accumulate(estimate.part_s(*seq.to_compute(inst)) for seq in prompts)
        return any(taken > self._settings.part_s for taken in seconds)

    def _before_greedy(self, group: Group, first: Sequence) -> list[dict[SeqId, Sequence]]:
        """Prompts of no lower tier, of tenants that are not greedy where the one that is next is none."""
        (level, _), _ = member(first).queue
        greedy = self._greedy(group, member(first).queue)
        queues = ((key, queue) for key, queue in group.queues.items() if key[0][0] <= level)
        return [queue for key, queue in queues if greedy or not self._greedy(group, key)]

    def _decodes_first(self, group: Group, prompt: Proposal, now: float) -> bool:
        """Returns whether a prompt would make late what its own group decodes, and that is due before. A late one of a
        tenant with a long queue comes behind what others decode.
        """
        first, soon = prompt.prefill[0], now + 2 * self._settings.part_s
        decoding = [seq for seq in group.members.values() if seq.stage is STAGE_DECODE]
        if group.standing.tiered:
            above = [seq for seq in decoding if seq.terms.tier.level < first.terms.tier.level]
            if due_next(above, now) < soon:
                return True
            if not (prompt.tokens or first.deferred or self._queue_is_long(group, first)):
                return False
        if due(first) < now and self._has_long_queue(group, first):
            return due_next([seq for seq in decoding if seq.tenant != first.tenant], now) < soon
        return due_next(decoding, now) < min(due(first), soon)

    def _has_long_queue(self, group: Group, seq: Sequence) -> bool:
        """Returns whether prompts that wait of a sequence's tenant take long, with their answers."""
        row = member(seq)
        demand_s = group.standing.clock(row.queue).demand_s(row.queue[1]) - row.cost_s
        return demand_s > LITTLE_SHARE * group.model.config.slo.ttft_s * len(self._table.of(group.model))


def _stands_back(group: Group, prompt: Sequence, now: float) -> bool:
    """Returns whether a prompt is late, and its model's time is not shared out by weight."""
    return due(prompt) < now and not group.standing.weighed


def due_next(sequences: Iterable[Sequence], now: float) -> float:
    """When the first token of these is due that is not late."""
    return min((at for at in map(due, sequences) if at >= now), default=inf)
