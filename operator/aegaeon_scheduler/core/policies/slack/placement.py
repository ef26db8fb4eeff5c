"""Which group a sequence joins when it arrives, or begins to decode: its model's, unless that is hot; else a new one,
where idle weights are or waiting for an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from operator import itemgetter

from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.phases import ROLE_PREFILL, STAGE_DECODE
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import (
    ENGINE_PRICE,
    HOT_MARGIN,
    HOT_UTIL,
    LITTLE_SHARE,
    URGENT_SHARE,
    Kind,
    Member,
    member,
    queue_of,
    tokens,
    too_small,
)
from aegaeon_scheduler.core.policies.slack.prefix import STAY_SHARE, pull
from aegaeon_scheduler.core.policies.slack.price import Costs
from aegaeon_scheduler.core.policies.slack.shares import Shares
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.policies.slack.weights import Warm
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Sequence


class Arrivals:
    """Puts sequences into groups."""

    def __init__(self, pool: Pool, table: Table, shares: Shares, costs: Costs, warm: Warm) -> None:
        self._pool = pool
        self._estimates = pool.estimates
        self._table = table
        self._shares = shares
        self._costs = costs
        self._warm = warm

    def prompt(self, seq: Sequence, now: float) -> Instance | None:
        """Join the model's group, unless it is hot; else idle weights; else a new group in the host pool."""
        self._pool.ask_pass()
        group = self._table.group(seq)
        seq.row = seq.row or Member(seq)
        member(seq).due_from = seq.promised_from + self._costs.late_s(seq)
        if group is None:
            self._warm.count_request(seq.model, now)
            member(seq).queue = queue_of(seq)
            group = self.joinable(seq) or self._create(seq)
            self._table.join(group, seq)
        if seq.projected_kv == 0:
            self._costs.price(seq, group)
            group.enqueue(seq)
        return group.inst

    def joinable(self, seq: Sequence) -> Group | None:
        """Returns the group that a prompt would join; None: it begins one."""
        model, kind = seq.model, self._table.prompt_kind(seq.model, seq)
        of = (g for g in self._table.of(model) if g.kind is kind and not self._apart(g, seq))
        groups = [g for g in of if g.inst is None or (g.may_go(g.inst) and not self._too_small(g.inst, seq))]
        home = self._home(groups, seq)
        if home is not None:
            return home
        if len(groups) > 1 and self._crowded_out(seq):
            groups = [g for g in groups if g.inst] or groups
        if not groups or model.footprint is None:
            return groups[0] if groups else None
        utils = [self._util(g) for g in groups]
        util = min(utils)
        group = groups[utils.index(util)]
        return None if self._hot(group, util) else group

    def _home(self, groups: list[Group], seq: Sequence) -> Group | None:
        """Returns the one that has most of a prompt in its engine's prefix cache, of those that have time for it."""
        if not seq.cached:
            return None
        utils = [(pull(self._estimates, seq, g.inst), -self._util(g), g) for g in groups if g.inst is not None]
        calm = [each for each in utils if each[0] and not self._full(each[2], -each[1], each[0])]
        return max(calm, key=itemgetter(0, 1), default=(0.0, 0.0, None))[2]

    def _crowded_out(self, seq: Sequence) -> bool:
        """Returns whether other tenants' prompts fill the queue, or a lower tier's wait. They may wait with what left
        an engine; this one goes where its model runs."""
        standing, queue = self._table.standing(seq.model), queue_of(seq)
        limit_s, clock = LITTLE_SHARE * seq.model.config.slo.ttft_s, standing.clock(queue)
        own_s = clock.demand_s(seq.tenant)
        return standing.waits_below(queue) or own_s <= limit_s < clock.total_s - own_s

    def _apart(self, group: Group, seq: Sequence) -> bool:
        """Returns whether no instance that may take the model serves the adapters of both."""
        if not seq.model.without:
            return False
        places = self._pool.fleet.of(seq.model).open if group.inst is None else (group.inst,)
        return bool(places) and not any(group.may_go(inst) and inst.takes(seq) for inst in places)

    def _too_small(self, inst: Instance, seq: Sequence) -> bool:
        return too_small(self._pool, inst, seq.model, tokens(seq))

    def _util(self, group: Group) -> float:
        inst = group.inst or next((i for i in self._places(group)), None)
        return 0.0 if inst is None else group.load(self._estimates, inst).util

    def _places(self, group: Group) -> Iterator[Instance]:
        """Where its kind and model allow it."""
        return (i for i in self._pool.fleet.of(group.model).open if i.role in group.kind.roles)

    def _hot(self, group: Group, util: float) -> bool:
        """So busy that a second group pays, and somewhere there is time for it: where the model has no group yet."""
        if not self._full(group, util):
            return False
        taken = [g.inst for g in self._table.of(group.model)]
        if next(islice(self._places(group), len(taken), None), None) is None:
            return False  # as many groups as places: one more would wait in turn with them, in smaller batches
        places = (i for i in self._places(group) if i not in taken)
        return any(self._table.view(i).util <= HOT_UTIL for i in places)

    def _full(self, group: Group, util: float, pull: float = 0.0) -> bool:
        """Returns whether its steps, or its prompts as when all ask for a model at once, take so much of its engine's
        time that others had better wait elsewhere. A prompt that is drawn much stays while the engine has time."""
        inst = group.inst
        if inst is None:
            return False
        stays = pull > STAY_SHARE * ENGINE_PRICE
        most = 1.0 if stays else max(HOT_UTIL, self._floor(group.model, inst) + HOT_MARGIN)
        return util > most or self._swamped(group, inst, URGENT_SHARE if stays else HOT_MARGIN)

    def _swamped(self, group: Group, inst: Instance, share: float) -> bool:
        """Returns whether its prompts alone take more than a share of TTFT."""
        return group.prompts_s(self._estimates, inst) > share * group.model.config.slo.ttft_s

    def _floor(self, model: Model, inst: Instance) -> float:
        """Share of an instance's time that a batch of one takes."""
        if model.pools:
            return 0.0
        return self._estimates.of(model.name, inst.device).step_s(0, 1) / max(model.config.slo.tbt_s, 1e-9)

    def _create(self, seq: Sequence) -> Group:
        self._shares.begin(seq.model)
        group = self._table.create(seq.model, self._table.prompt_kind(seq.model, seq))
        inst = self._idle_weights(group, seq)
        if inst is not None:
            self._table.place(group, inst)
        return group

    def _idle_weights(self, group: Group, seq: Sequence) -> Instance | None:
        """Returns the least loaded instance, of those that have the weights and no group of the model."""
        name = group.model.name
        holders = []
        for inst in group.model.holders.values():
            weights = inst.weights[name]
            if not weights.ready or weights.unload is not None or not group.may_go(inst) or inst.lacks(seq):
                continue
            if not any(g.model is group.model for g in self._table.at(inst)) and not self._too_small(inst, seq):
                holders.append(inst)
        return min(holders, key=lambda inst: (self._busy(seq, inst), inst.order), default=None)

    def _busy(self, seq: Sequence, inst: Instance) -> float:
        """Utilization with one more of its model, less what the cached beginning of the prompt is worth."""
        return self._table.view(inst).util + self._floor(seq.model, inst) - pull(self._estimates, seq, inst)

    def decode(self, seq: Sequence) -> Instance | None:
        """Stay with the group that prefilled it, or that waits for it; after a hand-off, join a decode group."""
        home = seq.home
        if home is not None and home.role is not ROLE_PREFILL and seq.stage is STAGE_DECODE:
            group = self._decode_group(seq, waits=True) if seq.copying_out else self._group_here(seq, home)
        else:
            group = self._table.group(seq) or self._decode_group(seq)
        self._table.join(group, seq)
        self._pool.ask_pass()
        return group.inst

    def _group_here(self, seq: Sequence, home: Instance) -> Group:
        groups = [g for g in self._table.at(home) if g.model is seq.model]
        if groups:
            return groups[0]
        group = self._table.create(seq.model, Kind.WHOLE if home.role is Role.UNIFIED else Kind.DECODES)
        self._table.place(group, home)
        return group

    def _decode_group(self, seq: Sequence, waits: bool = False) -> Group:
        """One whose KV is on no other node, and that can be placed on its node: it is handed off within a node. It
        waits for an instance, for a sequence that was preempted while the last part of its prompt ran."""
        node = seq.home.node if seq.home is not None else None
        of = (g for g in self._table.of(seq.model) if g.kind is not Kind.PROMPTS and self._takes(g, node))
        groups = [g for g in of if not (waits and g.inst) and not self._apart(g, seq)]
        least = min(groups, key=lambda g: (len(g.members), g.number), default=None)
        return least or self._table.create(seq.model, Kind.DECODES)

    def _takes(self, group: Group, node: str | None) -> bool:
        """A group of prompts that waits for a unified instance would be stuck with KV of a node that has none."""
        if group.node() not in (None, node):
            return False
        if node is None:
            return True
        if group.inst is not None:
            return group.may_go(group.inst) and group.inst.node == node
        return any(inst.node == node for inst in self._places(group))
