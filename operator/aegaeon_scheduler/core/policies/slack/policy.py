"""`policy: slack` behind the Policy protocol: which group a sequence joins, and what an instance runs next.

The most urgent group that is ready runs: a prompt of it, else a quantum of decode steps of its whole batch.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.phases import STAGE_QUEUED
from aegaeon_scheduler.core.policies import Move, Proposal
from aegaeon_scheduler.core.policies.slack.admission import Gate
from aegaeon_scheduler.core.policies.slack.balance import run_pass
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import begun, due
from aegaeon_scheduler.core.policies.slack.placement import Arrivals
from aegaeon_scheduler.core.policies.slack.price import Costs
from aegaeon_scheduler.core.policies.slack.shares import Shares
from aegaeon_scheduler.core.policies.slack.table import Table, disagreements
from aegaeon_scheduler.core.policies.slack.turns import Turns
from aegaeon_scheduler.core.policies.slack.weights import WARM_GAP_S, Warm, idle_order, past_host
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, Weights

PASS_INTERVAL_S = 0.2
"""between two passes over the pool at most, while there is work, and a quarter of it at least"""


class SlackPolicy:
    """Earliest deadline first over groups; slack is spent on larger batches and on groups that have less of it."""

    name = "slack"

    def __init__(self, pool: Pool, settings: SlackSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._table = Table(pool, settings)
        self._shares = Shares(pool, settings, self._table)
        self._turns = Turns(pool, settings, self._table)
        self._gate = Gate(pool, settings, self._table)
        self._warm = Warm(pool, settings, self._table)
        self._costs = Costs(pool, self._table)
        self._arrivals = Arrivals(pool, self._table, self._shares, self._costs, self._warm)
        pool.pass_at = inf

    def instance_down(self, inst: Instance) -> None:
        """See Policy. Its groups wait; those of their members that were on it are lost one by one."""
        self._table.down(inst)

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def place(self, seq: Sequence, now: float) -> Instance | None:
        """See Policy."""
        return self._arrivals.prompt(seq, now) if seq.stage is STAGE_QUEUED else self._arrivals.decode(seq)

    def refusal(self, seq: Sequence, now: float) -> str | None:
        """See Policy and admission.py."""
        return self._gate.too_much(seq, self._arrivals.joinable(seq), now)

    def forget(self, seq: Sequence) -> None:
        """See Policy."""
        self._costs.settle(seq)
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
            self._costs.charge(proposal.batch, seq)
            if proposal.batch.standing.ranked and seq.id in proposal.batch.prompts:
                begun(seq, proposal.batch.prompts.values())
            if not seq.unissued_tokens:
                proposal.batch.dequeue(seq)
        self._table.view(inst)  # measured at once: a pass over hundreds of instances takes long enough

    def reshaped(self, model: Model) -> None:
        """See Policy."""
        self._table.reshaped(model)

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
        """See Policy and balance.py."""
        self._shares.update(now)
        self._warm.withdraw()
        moves = run_pass(self._pool, self._settings, self._table, now)
        if self._pool.config.admission != "none":
            self._gate.measure(now)
        ahead = self._warm.moves(now)
        later_s = WARM_GAP_S if ahead else inf
        self._pool.pass_at = now + (PASS_INTERVAL_S if self._table.groups else later_s)
        self._pool.pass_from = now + PASS_INTERVAL_S / 4
        return moves + ahead
