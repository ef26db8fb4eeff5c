"""`policy: slack` behind the Policy protocol: which group a sequence joins, and what an instance runs next.

The most urgent group that is ready runs: a prompt of it, else a quantum of decode steps of its whole batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from math import inf
from operator import itemgetter

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Role, Stage
from aegaeon_scheduler.core.policies import Move, Proposal
from aegaeon_scheduler.core.policies.slack.admission import Gate, answer_tokens
from aegaeon_scheduler.core.policies.slack.balance import run_pass
from aegaeon_scheduler.core.policies.slack.group import Group, node_of
from aegaeon_scheduler.core.policies.slack.order import Member, begun, due, member, queue_of, tokens, too_small
from aegaeon_scheduler.core.policies.slack.prefix import pull
from aegaeon_scheduler.core.policies.slack.ranks import HOT_MARGIN, HOT_UTIL, SWAMPED_SHARE, Kind
from aegaeon_scheduler.core.policies.slack.shares import Shares
from aegaeon_scheduler.core.policies.slack.table import Table, disagreements
from aegaeon_scheduler.core.policies.slack.turns import LEVEL_SHARE, Turns
from aegaeon_scheduler.core.policies.slack.weights import WARM_GAP_S, Warm, idle_order, past_host
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, Weights

CHEAP_SHARE, PROMPT_PRICE = 0.1, 20.0
"""a prompt of a greedy model that takes more than this share of TTFT puts its request later by so many times what it
takes more: of its requests those are late that cost most; not where admission is promised"""
PASS_INTERVAL_S, PASS_GAP_S = 0.2, 0.05
"""between two passes over the pool at most, while there is work, and at least"""


class SlackPolicy:
    """Earliest deadline first over groups; slack is spent on larger batches and on groups that have less of it."""

    name = "slack"

    def __init__(self, pool: Pool, settings: SlackSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._estimates = pool.estimates
        self._table = Table(pool, settings)
        self._shares = Shares(pool, settings, self._table)
        self._turns = Turns(pool, settings, self._table)
        self._gate = Gate(pool, settings, self._table)
        self._warm = Warm(pool, settings, self._table)
        pool.pass_at = inf

    def instance_down(self, inst: Instance) -> None:
        """See Policy. Its groups wait; those of their members that were on it are lost one by one."""
        self._table.down(inst)

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def place(self, seq: Sequence, now: float) -> Instance | None:
        """See Policy."""
        return self._place_prompt(seq, now) if seq.stage is Stage.QUEUED else self._place_decode(seq)

    def _place_prompt(self, seq: Sequence, now: float) -> Instance | None:
        """Join the model's group, unless it is hot; else idle weights; else a new group in the host pool."""
        self._pool.ask_pass()
        group = self._table.group(seq)
        seq.row = seq.row or Member(seq)
        member(seq).due_from = seq.promised_from + self._price_s(seq)
        if group is None:
            self._warm.count_request(seq.model, now)
            kind = self._table.prompt_kind(seq.model, seq)
            member(seq).queue = queue_of(seq)
            group = self._joinable(seq, kind) or self._create(seq, kind)
            self._table.join(group, seq)
        if seq.projected_kv == 0:
            self._price(seq, group)
            group.enqueue(seq)
        return group.inst

    def _price_s(self, seq: Sequence) -> float:
        """Seconds by which a very long prompt of a greedy model puts its request later: what costs most is late."""
        model, standing = seq.model, self._table.standings.get(seq.model)
        if standing is None or not standing.greed or self._pool.config.admission != "none":
            return 0.0
        inst = next(iter(self._pool.fleet.of(model).open), None)
        if inst is None or model.footprint is None:
            return 0.0
        cheap_s = CHEAP_SHARE * model.config.slo.ttft_s
        prompt_s = self._estimates.of(model.name, inst.device).part_s(*seq.to_compute(inst))
        return standing.greed * PROMPT_PRICE * max(0.0, prompt_s - cheap_s)

    def _joinable(self, seq: Sequence, kind: Kind) -> Group | None:
        model = seq.model
        of = (g for g in self._table.of(model) if g.kind is kind and not self._apart(g, seq))
        groups = [g for g in of if not (g.inst and self._closed(g, g.inst, seq))]
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
        """Returns the one that has most of a prompt in its engine's prefix cache, unless it is hot."""
        pulls = [(pull(self._estimates, seq, g.inst), g) for g in groups if g.inst is not None and seq.cached]
        most, group = max(pulls, key=itemgetter(0), default=(0.0, None))
        return group if most and group and not self._hot(group, self._util(group)) else None

    def _crowded_out(self, seq: Sequence) -> bool:
        """Returns whether other tenants' prompts fill the queue, or a lower tier's wait. They may wait with what left
        an engine; this one goes where its model runs."""
        standing, queue = self._table.standing(seq.model), queue_of(seq)
        limit_s, clock = LEVEL_SHARE * seq.model.config.slo.ttft_s, standing.clock(queue)
        own_s = clock.demand_s(seq.tenant)
        return standing.waits_below(queue) or own_s <= limit_s < clock.total_s - own_s

    def _closed(self, group: Group, inst: Instance, seq: Sequence) -> bool:
        return not group.may_go(inst) or self._too_small(inst, seq)

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
        inst = group.inst
        if inst is None:
            return False
        floor = self._floor(group.model, inst)
        if util <= max(HOT_UTIL, floor + HOT_MARGIN) and not self._swamped(group, inst):
            return False
        taken = [g.inst for g in self._table.of(group.model)]
        if next(islice(self._places(group), len(taken), None), None) is None:
            return False  # as many groups as places: one more would wait in turn with them, in smaller batches
        places = (i for i in self._places(group) if i not in taken)
        return any(self._table.view(i).util <= HOT_UTIL for i in places)

    def _swamped(self, group: Group, inst: Instance) -> bool:
        """Returns whether its prompts alone take a good part of TTFT, as when all ask for a model at once."""
        limit_s = SWAMPED_SHARE * group.model.config.slo.ttft_s
        return group.prompts_s(self._estimates, inst) > limit_s

    def _floor(self, model: Model, inst: Instance) -> float:
        """Share of an instance's time that a batch of one takes."""
        if model.pools:
            return 0.0
        return self._estimates.of(model.name, inst.device).step_s(0, 1) / max(model.config.slo.tbt_s, 1e-9)

    def _create(self, seq: Sequence, kind: Kind) -> Group:
        self._shares.begin(seq.model)
        group = self._table.create(seq.model, kind)
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
        return min(holders, key=lambda i: (self._busy(group, i) - pull(self._estimates, seq, i), i.order), default=None)

    def _busy(self, group: Group, inst: Instance) -> float:
        return self._table.view(inst).util + self._floor(group.model, inst)

    def refusal(self, seq: Sequence, now: float) -> str | None:
        """See Policy and gate.py."""
        return self._gate.too_much(seq, self._joinable(seq, self._table.prompt_kind(seq.model, seq)), now)

    def _place_decode(self, seq: Sequence) -> Instance | None:
        """Stay with the group that prefilled it, or that waits for it; after a hand-off, join a decode group."""
        home = seq.home
        if home is not None and home.role is not Role.PREFILL and seq.stage is Stage.DECODE:
            group = self._group_leaving(seq) if seq.copying_out else self._group_here(seq, home)
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

    def _group_leaving(self, seq: Sequence) -> Group:
        """Returns a waiting group for a sequence that was preempted while the last part of its prompt ran."""
        waiting = (g for g in self._table.of(seq.model) if g.inst is None and g.kind is not Kind.PROMPTS)
        node = seq.home.node if seq.home is not None else None
        fitting = (g for g in waiting if self._takes(g, node) and not self._apart(g, seq))
        return next(fitting, None) or self._table.create(seq.model, Kind.DECODES)

    def _decode_group(self, seq: Sequence) -> Group:
        """One whose KV is on no other node, and that can be placed on its node: it is handed off within a node."""
        node = seq.home.node if seq.home is not None else None
        of = (g for g in self._table.of(seq.model) if g.kind is not Kind.PROMPTS and self._takes(g, node))
        groups = [g for g in of if not self._apart(g, seq)]
        least = min(groups, key=lambda g: (len(g.members), g.number), default=None)
        return least or self._table.create(seq.model, Kind.DECODES)

    def _takes(self, group: Group, node: str | None) -> bool:
        """A group of prompts that waits for a unified instance would be stuck with KV of a node that has none."""
        if node_of(group) not in (None, node):
            return False
        if node is None:
            return True
        if group.inst is not None:
            return group.may_go(group.inst) and group.inst.node == node
        return any(inst.node == node for inst in self._places(group))

    def forget(self, seq: Sequence) -> None:
        """See Policy."""
        self._settle(seq)
        self._table.leave(seq)

    # -- turns ------------------------------------------------------------------------------------------------------

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """See Policy and turns.py."""
        return self._turns.propose(inst, now, barred)

    def outranks(self, inst: Instance, seq: Sequence, turn: Issued, now: float) -> bool:
        """See Policy and turns.py."""
        return self._turns.outranks(inst, seq, turn, now)

    def issued(self, inst: Instance, proposal: Proposal, turn: Issued) -> None:
        """See Policy."""
        assert isinstance(proposal.batch, Group)
        proposal.batch.served = self._pool.now
        for seq in proposal.prefill:
            self._charge(proposal.batch, seq)
            if proposal.batch.standing.ranked and seq.id in proposal.batch.prompts:
                begun(seq, proposal.batch.prompts.values())
            if not seq.unissued_tokens:
                proposal.batch.dequeue(seq)
        self._table.view(inst)  # measured at once: a pass over hundreds of instances takes long enough

    def _price(self, seq: Sequence, group: Group) -> None:
        """Prices a sequence in seconds of an engine: its prompt, and a place in a full batch for each token. One that
        waits already came before an engine had its model.
        """
        row, model = member(seq), seq.model
        inst = next(iter(self._pool.fleet.of(model).open), None)
        if row.cost_s or inst is None or model.footprint is None:
            return
        estimate, length = self._estimates.of(model.name, inst.device), tokens(seq)
        answer = answer_tokens(model, model.running)  # what has ended settles
        row.answer = 0.0 if model.pools else min(answer, float(seq.max_tokens))
        row.token_s = estimate.step_s(inst.max_batch * length, inst.max_batch) / inst.max_batch
        cached = seq.cached_on(group.inst or inst)
        row.cost_s = estimate.part_s(cached, length - cached) + row.answer * row.token_s
        if seq.id in group.prompts:
            group.standing.clock(row.queue).reprice(row.queue[1], row.cost_s)

    def _charge(self, group: Group, seq: Sequence) -> None:
        """A prompt begins while others wait: its tenant pays for it, and for the answer that is expected."""
        row = member(seq)
        clock = group.standing.clock(row.queue)
        if not row.charged and clock.active > 1:
            row.charged = True
            clock.charge(row.queue[1], row.cost_s)

    def _settle(self, seq: Sequence) -> None:
        """A sequence leaves, and not from prefill to decode: its tenant pays for the tokens that there were."""
        group = self._table.group(seq)
        if group is None or (seq.prefilled and seq.stage is Stage.PREFILL):
            return
        row = member(seq)
        if row.charged:
            group.standing.clock(row.queue).charge(row.queue[1], (seq.output_tokens - row.answer) * row.token_s)
            row.answer = float(seq.output_tokens)

    def reshaped(self, model: Model) -> None:
        """See Policy."""
        self._table.reshaped(model)
        for group in self._table.of(model):
            group.still = None
            group.changed()

    def unissued(self, inst: Instance, seq: Sequence) -> None:
        """See Policy. It comes first again."""
        group = self._table.group(seq)
        if group is not None:
            group.enqueue(seq, first=True)

    # -- preemption --------------------------------------------------------------------------------------------------

    def unload_order(self, inst: Instance, idle: list[Weights]) -> list[Weights]:
        """Models without a group here, least recently used first; the others keep their place."""
        live = self._table.live(inst)
        order = idle_order(self._pool, inst, [w for w in idle if w.model.name not in live])
        return self._warm.order(order, self._pool.now)

    def past_host(self, inst: Instance) -> bool:
        """See Policy: what is in host memory and still asked for stays there."""
        return past_host(self._pool, inst)

    def preemption_order(self, inst: Instance, sequences: list[Sequence], now: float) -> list[Sequence]:
        """Orders victims: those whose group has most slack first; within a group, those due last."""
        late_s = self._settings.late_slack_s
        keys = {id(g): g.urgency(now, late_s)[0] + g.standing.behind for g in self._table.at(inst)}
        return sorted(sequences, key=lambda s: (-keys.get(id(self._table.group(s)), inf), -due(s), s.order))

    def check(self, now: float) -> list[str]:
        """See Policy."""
        return disagreements(self._pool, self._table, now)

    def pool_pass(self, now: float) -> list[Move]:
        """See Policy and passes.py."""
        self._shares.update(now)
        self._warm.withdraw()
        moves = run_pass(self._pool, self._settings, self._table, now)
        if self._pool.config.admission != "none":
            self._gate.measure(now)
        ahead = self._warm.moves(now)
        later_s = WARM_GAP_S if ahead else inf
        self._pool.pass_at = now + (PASS_INTERVAL_S if self._table.groups else later_s)
        self._pool.pass_from = now + PASS_GAP_S
        return moves + ahead
