"""`policy: slack` behind the Policy protocol: which group a sequence joins, and what an instance runs next.

The most urgent group that is ready runs: a prompt of it, else a quantum of decode steps of its whole batch.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from aegaeon_scheduler.core.book import blocks_for
from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Place, Role
from aegaeon_scheduler.core.policies import Move, Proposal
from aegaeon_scheduler.core.policies.slack.group import Group, Kind, Load, due, node_of, tokens, too_small
from aegaeon_scheduler.core.policies.slack.passes import run_pass
from aegaeon_scheduler.core.policies.slack.reach import idle_order, past_host
from aegaeon_scheduler.core.policies.slack.shares import Shares
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, Stage, Weights


class SlackPolicy:
    """Earliest deadline first over groups; slack is spent on larger batches and on groups that have less of it."""

    name = "slack"

    def __init__(self, pool: Pool, settings: SlackSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._estimates = pool.estimates
        self._table = Table(pool, settings)
        self._shares = Shares(pool, settings)
        pool.pass_at = inf

    def instance_up(self, inst: Instance) -> None:
        """See Policy."""
        self._table.up(inst)

    def instance_down(self, inst: Instance) -> None:
        """See Policy. Its groups wait; those of their members that were on it are lost one by one."""
        self._table.down(inst)

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def place(self, seq: Sequence, now: float) -> Instance | None:
        """Join the model's group, unless it is hot; else idle weights; else a new group in the host pool."""
        self._pool.ask_pass()
        group = self._table.group(seq)
        if group is None:
            kind = self._table.prompt_kind(seq.model)
            group = self._joinable(seq, kind, now) or self._create(seq, kind, now)
            self._table.join(group, seq)
        if seq.projected_kv == 0:
            group.prompts[seq.id] = seq
        return group.inst

    def _joinable(self, seq: Sequence, kind: Kind, now: float) -> Group | None:
        model = seq.model
        groups = [g for g in self._table.of(model) if g.kind is kind and not (g.inst and self._closed(g, g.inst, seq))]
        if not groups or model.footprint is None:
            return groups[0] if groups else None
        utils = [self._util(g, now) for g in groups]
        util = min(utils)
        group = groups[utils.index(util)]
        return None if self._hot(group, util, now) else group

    def _closed(self, group: Group, inst: Instance, seq: Sequence) -> bool:
        return not group.may_go(inst) or self._too_small(inst, seq)

    def _too_small(self, inst: Instance, seq: Sequence) -> bool:
        return too_small(self._pool, inst, seq.model, tokens(seq))

    def _util(self, group: Group, now: float) -> float:
        inst = group.inst or next((i for i in self._pool.instances.values() if group.may_go(i)), None)
        if inst is None:
            return 0.0
        return Load.of(group, now, self._settings, self._estimates, inst).util

    def _hot(self, group: Group, util: float, now: float) -> bool:
        """So busy that a second group pays, and somewhere there is time for it: where the model has no group yet."""
        inst = group.inst
        if inst is None:
            return False
        floor = self._floor(group.model, inst)
        if util <= max(self._settings.hot_util, floor + self._settings.hot_margin) and not self._swamped(group, inst):
            return False
        taken = [g.inst for g in self._table.of(group.model)]
        others = [i for i in self._pool.instances.values() if i not in taken and group.may_go(i)]
        return any(self._table.util(i, now) <= self._settings.hot_util for i in others)

    def _swamped(self, group: Group, inst: Instance) -> bool:
        """Whether its prompts alone take a good part of TTFT, as when all begin to ask for one model at once."""
        estimate = self._estimates.of(group.model.name, inst.device)
        limit_s = self._settings.swamped_share * group.model.config.slo.ttft_s
        return sum(estimate.prefill_s(tokens(seq)) for seq in group.prompts.values()) > limit_s

    def _floor(self, model: Model, inst: Instance) -> float:
        """Share of an instance's time that a batch of one takes."""
        return self._estimates.of(model.name, inst.device).step_s(0, 1) / max(model.config.slo.tbt_s, 1e-9)

    def _create(self, seq: Sequence, kind: Kind, now: float) -> Group:
        seq.model.behind = self._shares.tier_s(seq.model)
        group = self._table.create(seq.model, kind)
        inst = self._idle_weights(group, seq, now)
        if inst is not None:
            self._table.place(group, inst)
        return group

    def _idle_weights(self, group: Group, seq: Sequence, now: float) -> Instance | None:
        """Of instances that have the weights and no group of the model, the one least loaded with it; unless full."""
        name = group.model.name
        here = []
        for inst in self._pool.instances.values():
            weights = inst.weights.get(name)
            if weights is None or not weights.ready or weights.unload is not None or not group.may_go(inst):
                continue
            if not any(g.model is group.model for g in self._table.at(inst)) and not self._too_small(inst, seq):
                here.append(inst)
        if not here:
            return None
        utils = [(self._table.util(i, now), self._floor(group.model, i), i) for i in here]
        util, floor, inst = min(utils, key=lambda x: (x[0] + x[1], x[0], x[2].order))
        if util + floor > self._settings.full_util:
            others = [i for i in self._pool.instances.values() if group.may_go(i)]
            if any(self._table.util(i, now) < util - self._settings.idle_gap for i in others):
                return None
        return inst

    def wait_s(self, seq: Sequence, now: float) -> float:
        """See Policy. Where its model is on an engine it does not wait; else for the groups that are due before."""
        groups = self._table.of(seq.model)
        if any(group.inst is not None for group in groups):
            return 0.0
        key = min([due(seq), *(group.urgency(now, self._settings.late_slack_s)[0] for group in groups)])
        return self._table.line.wait_s(key, seq.model.config.terms.tier.level, now)

    def place_decode(self, seq: Sequence, now: float) -> Instance | None:
        """Stay with the group that prefilled it; after a hand-off, join the model's decode group."""
        home = seq.home
        if home is not None and home.role is not Role.PREFILL and seq.stage is Stage.DECODE:
            group = self._group_here(seq, home)
        else:
            group = self._table.group(seq) or self._decode_group(seq)
        self._table.join(group, seq)
        self._pool.ask_pass()
        return group.inst

    def _group_here(self, seq: Sequence, home: Instance) -> Group:
        found = [g for g in self._table.at(home) if g.model is seq.model]
        if found:
            return found[0]
        group = self._table.create(seq.model, Kind.WHOLE if home.role is Role.UNIFIED else Kind.DECODES)
        self._table.place(group, home)
        return group

    def _decode_group(self, seq: Sequence) -> Group:
        """One whose KV is on no other node, and that can be placed on its node: it is handed off within a node."""
        node = seq.home.node if seq.home is not None else None
        groups = [g for g in self._table.of(seq.model) if g.kind is not Kind.PROMPTS and self._takes(g, node)]
        least = min(groups, key=lambda g: (len(g.members), g.number), default=None)
        return least or self._table.create(seq.model, Kind.DECODES)

    def _takes(self, group: Group, node: str | None) -> bool:
        """A group of prompts that waits for a unified instance would be stuck with KV of a node that has none."""
        if node_of(group) not in (None, node):
            return False
        places = self._pool.instances.values() if group.inst is None else (group.inst,)
        return node is None or any(group.may_go(inst) and inst.node == node for inst in places)

    def forget(self, seq: Sequence) -> None:
        """See Policy."""
        self._table.leave(seq)

    def batch_of(self, seq: Sequence) -> Group | None:
        """See Policy."""
        return self._table.group(seq)

    # -- turns ------------------------------------------------------------------------------------------------------

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """The smallest key first: a prompt that fits, else a quantum of its batch."""
        prompts = {id(proposal.tag) for proposal in barred if proposal.prefill}
        batches = {id(proposal.tag) for proposal in barred if proposal.decode}
        groups = [g for g in self._table.at(inst) if g.members]
        order = sorted(((g.order(now, self._settings), g.number, g) for g in groups), key=lambda x: (x[0].rank, x[1]))
        for (key, _), _, group in order:
            if not group.ready():
                self._want(inst, group)
                continue
            if group.since == inf:
                group.since = now
            proposal = None if id(group) in prompts else self._prompt(inst, group, key - now)
            if proposal is None and id(group) not in batches:
                proposal = self._quantum(inst, group, key - now)
            if proposal is not None:
                return proposal
        if inst.turns or inst.wanted:
            return None
        forced = (self._forced(g, id(g) not in prompts, id(g) not in batches) for _, _, g in order)
        return next((proposal for proposal in forced if proposal is not None), None)

    def _want(self, inst: Instance, group: Group) -> None:
        """A group whose weights were unloaded for others, or never came, gets them again."""
        weights = inst.weights.get(group.model.name)
        if weights is None and group.model.name not in inst.wanted:
            inst.wanted[group.model.name] = "its group runs here"

    def _prompt(self, inst: Instance, group: Group, slack_s: float) -> Proposal | None:
        seq = next(iter(group.prompts.values()), None)
        if seq is None:
            return None
        fp = group.model.fp
        need = inst.book.slabs_for(fp, blocks_for(fp, seq.prompt_tokens + seq.prefix_tokens))
        free = inst.book.free()
        if need > free and need > free + sum(w.slabs for w in self._idle(inst)):
            return None
        return Proposal(group.model, (seq,), [], 0, f"prompt of the most urgent group, slack {slack_s:.3g} s", group)

    def _quantum(self, inst: Instance, group: Group, slack_s: float) -> Proposal | None:
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
            ready.sort(key=due)
        reason = f"{len(ready)} sequences of the most urgent group, slack {slack_s:.3g} s"
        return Proposal(group.model, (), ready, self._settings.quantum_steps, reason, group)

    def _forced(self, group: Group, prompts: bool, batch: bool) -> Proposal | None:
        """Nothing on the instance can run as it is: let the most urgent group take what it needs."""
        reason = "nothing else can run here"
        prompt = next(iter(group.prompts.values()), None)
        if prompt is not None and prompts:
            return Proposal(group.model, (prompt,), [], 0, reason, group)
        away = [s for s in group.members.values() if s.copy is None and s.stage in (Stage.DECODE, Stage.HANDOFF)]
        if not away or not batch:
            return None
        return Proposal(group.model, (), sorted(away, key=due), self._settings.quantum_steps, reason, group)

    def issued(self, inst: Instance, proposal: Proposal, turn: Issued) -> None:
        """See Policy."""
        assert isinstance(proposal.tag, Group)
        for seq in proposal.prefill:
            proposal.tag.prompts.pop(seq.id, None)

    def unissued(self, inst: Instance, seq: Sequence) -> None:
        """See Policy. It comes first again."""
        group = self._table.group(seq)
        if group is not None and seq.id not in group.prompts:
            group.prompts = {seq.id: seq, **group.prompts}

    # -- preemption --------------------------------------------------------------------------------------------------

    def _idle(self, inst: Instance) -> list[Weights]:
        live = {g.model.name for g in self._table.at(inst) if g.members}
        return [w for name, w in inst.weights.items() if name not in live and w.ready and w.unload is None]

    def unload_order(self, inst: Instance, idle: list[Weights]) -> list[Weights]:
        """Models without a group here, least recently used first; the others keep their place."""
        live = {g.model.name for g in self._table.at(inst) if g.members}
        return idle_order(self._pool, inst, [w for w in idle if w.model.name not in live])

    def past_host(self, inst: Instance) -> bool:
        """See Policy: what is in host memory and still asked for stays there."""
        return past_host(self._pool, inst, self._settings.stale_s)

    def preemption_order(self, inst: Instance, sequences: list[Sequence], now: float) -> list[Sequence]:
        """Those whose group has most slack first; within a group, those due last."""
        late_s = self._settings.late_slack_s
        keys = {id(g): g.urgency(now, late_s)[0] + g.model.behind for g in self._table.at(inst)}
        return sorted(sequences, key=lambda s: (-keys.get(id(self._table.group(s)), inf), -due(s), s.order))

    def pool_pass(self, now: float) -> list[Move]:
        """See Policy and passes.py."""
        self._shares.update({g.model.name: g.model for g in self._table.groups.values()}.values(), now)
        moves = run_pass(self._pool, self._settings, self._table, now)
        self._pool.pass_at = now + self._settings.pass_interval_s if self._table.groups else inf
        self._pool.pass_from = now + self._settings.pass_gap_s
        return moves
