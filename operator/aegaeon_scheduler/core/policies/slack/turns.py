"""Chooses what an instance runs next: of the most urgent group that is ready a prompt, or a quantum of its whole batch;
of groups that are all far ahead of their readers, the group that waited longest.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from operator import itemgetter

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.phases import PLACE_DEVICE, PLACE_HOST, STAGE_DECODE, STAGE_HANDOFF, STAGE_QUEUED
from aegaeon_scheduler.core.policies import Proposal
from aegaeon_scheduler.core.policies.slack.batch import in_places
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import LITTLE_SHARE, Order, due, in_order, member, tokens
from aegaeon_scheduler.core.policies.slack.place import FULL_UTIL
from aegaeon_scheduler.core.policies.slack.prompts import Ordered, Prompts, due_next
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Sequence


class Turns:
    """Proposes turns. What has to come first it asks for in `Instance.wanted` and `incoming`."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table) -> None:
        self._pool = pool
        self._settings = settings
        self._table = table
        self._prompts = Prompts(pool, settings, table)

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
                if group.model.name not in inst.weights:  # unloaded for others, or never came
                    inst.wanted.setdefault(group.model.name, "its group runs here")
                continue
            if group.since == inf:
                group.since = now
            prompt = None if id(group) in prompts else self._prompts.next(inst, group, order, now)
            limit = self._prompts.limit(prompt, group, order, now)
            if prompt is not None and limit is not None:
                aside = min(aside, (limit, prompt), key=itemgetter(0)) if aside else (limit, prompt)
                prompt = None
                if key >= limit:
                    continue
            if prompt is not None and not self._prompts.come_behind(group, prompt, now):
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
            decoding = (seq for seq in group.members.values() if seq.stage is STAGE_DECODE)
            return due_next(decoding, now) - out_s > due_s and self._has_time(inst, now)
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
        return not self._table.pressed

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
        if self._table.waiting or any(g.prompts or g.urgency(now, 0.0)[1] < len(g.members) for g in above):
            return orders  # a prompt waits, or some of them is late: their tier has to stand up for them
        return [(o._replace(rank=o.rank - g.standing.tier_s * g.scale.factor), g) for o, g in orders]

    # -- decode -----------------------------------------------------------------------------------------------------

    def _quantum(self, inst: Instance, group: Group, key: float, now: float) -> Proposal | None:
        ready, away = [], []
        for seq in group.members.values():
            if seq.copy is None:
                if seq.place is PLACE_DEVICE and seq.stage is STAGE_DECODE:
                    ready.append(seq)
                elif seq.stage is not STAGE_QUEUED and (seq.place is PLACE_HOST or seq.source is not None):
                    away.append(seq)
        if away and not inst.incoming:
            inst.incoming.extend(sorted(away, key=due))
        if not ready:
            return None
        if len(ready) > inst.max_batch:
            if group.standing.weighed:
                ready.sort(key=due)
            else:
                ready = in_places(ready, inst.max_batch, now, 2 * LITTLE_SHARE * group.model.config.slo.ttft_s)
        reason = f"{len(ready)} sequences of the group that is next, slack {key - now:.3g} s"
        return Proposal(group.model, (), ready, self._steps(inst, group, ready, now), reason, group)

    def _steps(self, inst: Instance, group: Group, ready: list[Sequence], now: float) -> int:
        """Steps of a turn: more while the scheduler is late, so many that a full lane of such turns ends before
        anything else here is due."""
        quantum, most = self._settings.quantum_steps, self._settings.quantum_steps * self._pool.stretch
        if most == quantum or len(ready) > inst.max_batch:
            return quantum
        until = now + 2 * LITTLE_SHARE * group.model.config.slo.ttft_s  # a prompt that comes waits for the lane
        until = min(until, min((due(seq) for seq in group.prompts.values()), default=inf))
        for other in self._table.at(inst):
            if other is not group and other.members:
                until = min(until, other.urgency(now, self._settings.late_slack_s)[0])
        estimate, context = self._pool.estimates.of(group.model.name, inst.device), sum(map(tokens, ready))
        turn_s = (until - now) / self._pool.config.lane_depth
        return max(quantum, min(most, int(turn_s / estimate.step_s(context, len(ready)))))

    def _forced(self, group: Group, prompts: bool, batch: bool) -> Proposal | None:
        """Nothing on the instance can run as it is: let the most urgent group take what it needs."""
        reason = "nothing else can run here"
        prompt = next((seq for seq in in_order(group.prompts, group.standing.ranked) if seq.copy is None), None)
        if prompt is not None and prompts:
            tokens = min(prompt.unissued_tokens, self._pool.config.prefill_chunk_tokens)
            return Proposal(group.model, (prompt,), [], 0, reason, group, tokens)
        away = [s for s in group.members.values() if s.copy is None and s.stage in (STAGE_DECODE, STAGE_HANDOFF)]
        if not away or not batch:
            return None
        return Proposal(group.model, (), sorted(away, key=due), self._settings.quantum_steps, reason, group)
