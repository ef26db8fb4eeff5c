"""Chooses what an instance runs next: of the most urgent group that is ready a prompt, or a quantum of its whole batch;
of groups that are all far ahead of their readers, the group that waited longest.

A long prompt is computed in parts, each no longer than the slack of what else waits here: between them others run, and
its KV stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from math import inf
from operator import itemgetter

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Place, SeqId, Stage
from aegaeon_scheduler.core.policies import Proposal
from aegaeon_scheduler.core.policies.slack.batch import in_places
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import Queue, due, in_order, member, priced
from aegaeon_scheduler.core.policies.slack.place import FULL_UTIL
from aegaeon_scheduler.core.policies.slack.ranks import URGENT_SHARE, Order
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Sequence, Weights

Ordered = list[tuple[float, Group]]
"""groups of an instance, smallest rank first, each with the time at which its most urgent token is due"""

LEVEL_SHARE = 0.1
"""of TTFT, in seconds of an engine: up to here tenants of a model are level, and their prompts begin as they come"""
SOON_SHARE = 0.2
"""of TTFT: what has less slack asks for a place of a batch that is too small"""


class Turns:
    """Proposes turns. What has to come first it asks for in `Instance.wanted` and `incoming`."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table) -> None:
        self._pool = pool
        self._settings = settings
        self._table = table

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """See Policy."""
        prompts = {id(proposal.batch) for proposal in barred if proposal.prefill}
        batches = {id(proposal.batch) for proposal in barred if proposal.decode}
        order = self._order(inst, now)
        aside: tuple[float, Proposal] | None = None
        for key, group in order:
            if aside is not None and key >= aside[0]:
                break
            if not group.ready():
                self._want(inst, group)
                continue
            if group.since == inf:
                group.since = now
            prompt = None if id(group) in prompts else self._prompt(inst, group, order, now)
            limit = self._before(prompt, group, order, now)
            if prompt is not None and limit is not None:
                aside = min(aside, (limit, prompt), key=itemgetter(0)) if aside else (limit, prompt)
                prompt = None
                if key >= limit:
                    continue
            if prompt is not None and not (self._yields(group, prompt) and self._decodes_first(group, prompt, now)):
                return prompt
            batch = None if id(group) in batches else self._quantum(inst, group, key, now)
            if batch is not None or prompt is not None:
                return batch or prompt
        if aside is not None:
            return aside[1]
        if inst.turns or inst.wanted:
            return None
        forced = (self._forced(g, id(g) not in prompts, id(g) not in batches) for _, g in order)
        return next((proposal for proposal in forced if proposal is not None), None)

    def outranks(self, inst: Instance, seq: Sequence, turn: Issued, now: float) -> bool:
        """Returns whether all that a decode turn computes is due later than the prompt, though none of it were
        computed.

        So its group has more slack than the prompt, and loses nothing but the order.
        """
        group, other = self._table.group(seq), turn.batch
        if group is None or group.inst is not inst or not group.ready() or not isinstance(other, Group):
            return False
        if group.standing.weighed:
            return False  # weights share out the time
        due_s = seq.deadline() + member(seq).due_from - seq.promised_from
        out_s = other.model.config.slo.tbt_s * sum(t.steps - t.steps_done for t in inst.turns if t.batch is other)
        if other is group:
            return self._decoding_due(group, now) - out_s > due_s and self._has_time(inst, now)
        if other.order(now, self._settings).rank - out_s <= group.order(now, self._settings).rank:
            return False
        key = other.urgency(now, self._settings.late_slack_s)[0] + other.standing.behind
        return key - out_s > due_s + group.standing.behind and self._has_time(inst, now)

    def _has_time(self, inst: Instance, now: float) -> bool:
        """Returns whether an instance is not full, nothing of it is late, and no group waits in vain for an engine:
        short turns cost time, and what ends later keeps its memory for longer."""
        if self._table.view(inst).util > FULL_UTIL:
            return False
        for group in self._table.at(inst):
            if group.urgency(now, self._settings.late_slack_s)[1] < len(group.members):
                return False
        return not self._table.urgent.any(now)

    def _order(self, inst: Instance, now: float) -> Ordered:
        orders = [(g.order(now, self._settings), g) for g in self._table.at(inst) if g.members]
        if len({g.standing.tier_s for _, g in orders}) > 1:
            orders = self._eased(orders, now)
        orders.sort(key=lambda x: (x[0].rank, x[1].number))
        if len(orders) > 1 and not self._table.waiting:
            orders.sort(key=lambda x: self._round(x[1], now))
        return [(order.key, group) for order, group in orders]

    def _round(self, group: Group, now: float) -> tuple[int, float]:
        """While no group waits for an engine, those here that are far ahead of their readers take turns with each
        other: by slack alone one of them would stall until all others are as far. Then comes what is deferred.
        """
        key, in_time = group.urgency(now, self._settings.late_slack_s)
        if (
            group.prompts
            or key - now <= group.model.config.slo.ttft_s
            or in_time < len(group.members)
            or group.standing.weighed
        ):
            return 0, 0.0
        return (2, 0.0) if group.deferred() else (1, group.served)

    def _eased(self, orders: list[tuple[Order, Group]], now: float) -> list[tuple[Order, Group]]:
        """Tiers do not count while all above the lowest one here have time: it would be late for nothing."""
        lowest = max(group.model.config.terms.tier.level for _, group in orders)
        above = [g for _, g in orders if g.model.config.terms.tier.level < lowest]
        if self._table.waiting or any(self._pressed(g, now) for g in above):
            return orders
        return [(o._replace(rank=o.rank - g.standing.tier_s * g.scale.factor), g) for o, g in orders]

    def _pressed(self, group: Group, now: float) -> bool:
        """Returns whether a group's tier has to stand up for it: a prompt waits, or some of it is late."""
        return bool(group.prompts) or group.urgency(now, 0.0)[1] < len(group.members)

    def _want(self, inst: Instance, group: Group) -> None:
        """A group whose weights were unloaded for others, or never came, gets them again."""
        weights = inst.weights.get(group.model.name)
        if weights is None and group.model.name not in inst.wanted:
            inst.wanted[group.model.name] = "its group runs here"

    # -- prompts ----------------------------------------------------------------------------------------------------

    def _prompt(self, inst: Instance, group: Group, order: Ordered, now: float) -> Proposal | None:
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
        if not group.standing.tiered or len(group.levels) < 2:
            return (group.prompts,)
        levels = sorted(group.levels, key=lambda level: (level[1], level[0]))
        return [group.levels[level] for level in levels]

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
        limit_s = LEVEL_SHARE * group.model.config.slo.ttft_s * len(self._table.of(group.model))
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
        return need <= free + sum(w.slabs for w in self._idle(inst))

    def _idle(self, inst: Instance) -> list[Weights]:
        live = self._table.live(inst)
        return [w for name, w in inst.weights.items() if name not in live and w.ready and w.unload is None]

    def _before(self, prompt: Proposal | None, group: Group, order: Ordered, now: float) -> float | None:
        """Until when (seconds) what other groups have due comes before a part of a long prompt; None: nothing of it.

        It is urgent by its own deadline, not by that of what its group decodes: they have little slack, it has more.
        """
        if prompt is None or not prompt.tokens:
            return None
        limit = min(due(prompt.prefill[0]), now + URGENT_SHARE * group.model.config.slo.ttft_s)
        keys = (key for key, other in order if other is not group and other.ready())
        return limit if min(keys, default=inf) < limit else None

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
        decoding = [seq for seq in group.members.values() if seq.stage is Stage.DECODE]
        if group.standing.tiered:
            above = [seq for seq in decoding if seq.terms.tier.level < first.terms.tier.level]
            if _due(above, now) < soon:
                return True
            if not (prompt.tokens or first.deferred or self._queue_is_long(group, first)):
                return False
        if due(first) < now and self._has_long_queue(group, first):
            return _due([seq for seq in decoding if seq.tenant != first.tenant], now) < soon
        return _due(decoding, now) < min(due(first), soon)

    def _has_long_queue(self, group: Group, seq: Sequence) -> bool:
        """Returns whether prompts that wait of a sequence's tenant take long, with their answers."""
        row = member(seq)
        demand_s = group.standing.clock(row.queue).demand_s(row.queue[1]) - row.cost_s
        return demand_s > LEVEL_SHARE * group.model.config.slo.ttft_s * len(self._table.of(group.model))

    def _decoding_due(self, group: Group, now: float) -> float:
        """When the first token of what it decodes is due that is not late."""
        return _due((seq for seq in group.members.values() if seq.stage is Stage.DECODE), now)

    # -- decode -----------------------------------------------------------------------------------------------------

    def _quantum(self, inst: Instance, group: Group, key: float, now: float) -> Proposal | None:
        ready, away = [], []
        for seq in group.members.values():
            if seq.copy is None:
                if seq.place is Place.DEVICE and seq.stage is Stage.DECODE:
                    ready.append(seq)
                elif seq.stage is not Stage.QUEUED and (seq.place is Place.HOST or seq.source is not None):
                    away.append(seq)
        if away and not inst.incoming:
            inst.incoming.extend(sorted(away, key=due))
        if not ready:
            return None
        if len(ready) > inst.max_batch:
            if group.standing.weighed:
                ready.sort(key=due)
            else:
                ready = in_places(ready, inst.max_batch, now, SOON_SHARE * group.model.config.slo.ttft_s)
        reason = f"{len(ready)} sequences of the group that is next, slack {key - now:.3g} s"
        return Proposal(group.model, (), ready, self._settings.quantum_steps, reason, group)

    def _forced(self, group: Group, prompts: bool, batch: bool) -> Proposal | None:
        """Nothing on the instance can run as it is: let the most urgent group take what it needs."""
        reason = "nothing else can run here"
        prompt = next((seq for seq in in_order(group.prompts, group.standing.ranked) if seq.copy is None), None)
        if prompt is not None and prompts:
            tokens = min(prompt.unissued_tokens, self._pool.config.prefill_chunk_tokens)
            return Proposal(group.model, (prompt,), [], 0, reason, group, tokens)
        away = [s for s in group.members.values() if s.copy is None and s.stage in (Stage.DECODE, Stage.HANDOFF)]
        if not away or not batch:
            return None
        return Proposal(group.model, (), sorted(away, key=due), self._settings.quantum_steps, reason, group)


def _stands_back(group: Group, prompt: Sequence, now: float) -> bool:
    """Returns whether a prompt is late, and its model's time is not shared out by weight."""
    return due(prompt) < now and not group.standing.weighed


def _due(sequences: Iterable[Sequence], now: float) -> float:
    """When the first token of these is due that is not late."""
    return min((at for at in map(due, sequences) if at >= now), default=inf)
