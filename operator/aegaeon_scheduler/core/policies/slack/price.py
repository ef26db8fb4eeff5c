"""Prices what a request costs in seconds of an engine: its tenant is charged, and dear ones of a greedy model come late
first.
"""

from __future__ import annotations

from aegaeon_scheduler.core.phases import STAGE_PREFILL
from aegaeon_scheduler.core.policies.slack.admission import answer_tokens
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import ENGINE_PRICE, LITTLE_SHARE, member, tokens
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Sequence


class Costs:
    """Prices requests, and keeps the clocks of tenants."""

    def __init__(self, pool: Pool, table: Table) -> None:
        self._pool = pool
        self._estimates = pool.estimates
        self._table = table

    def late_s(self, seq: Sequence) -> float:
        """Seconds by which a long prompt of a greedy model puts its request later: of its requests those are late that
        cost most. Not where admission is promised."""
        model, standing = seq.model, self._table.standings.get(seq.model)
        if standing is None or not standing.greed or self._pool.config.admission != "none":
            return 0.0
        inst = next(iter(self._pool.fleet.of(model).open), None)
        if inst is None or model.footprint is None:
            return 0.0
        cheap_s = LITTLE_SHARE * model.config.slo.ttft_s
        prompt_s = self._estimates.of(model.name, inst.device).part_s(*seq.to_compute(inst))
        return standing.greed * ENGINE_PRICE * max(0.0, prompt_s - cheap_s)

    def price(self, seq: Sequence, group: Group) -> None:
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

    def charge(self, group: Group, seq: Sequence) -> None:
        """A prompt begins while others wait: its tenant pays for it, and for the answer that is expected."""
        row = member(seq)
        clock = group.standing.clock(row.queue)
        if row.charged is None and clock.active > 1:
            row.charged = clock, clock.charge(row.queue[1], row.cost_s)

    def settle(self, seq: Sequence) -> None:
        """A sequence leaves, and not from prefill to decode: its tenant pays for the tokens that there were."""
        group = self._table.group(seq)
        if group is None or (seq.prefilled and seq.stage is STAGE_PREFILL):
            return
        row = member(seq)
        if row.charged is not None:
            clock, visit = row.charged
            clock.settle(row.queue[1], (seq.output_tokens - row.answer) * row.token_s, visit)
            row.answer = float(seq.output_tokens)
