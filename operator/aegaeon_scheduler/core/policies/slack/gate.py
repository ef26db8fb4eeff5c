"""Admits a new request if it can be on time, and those admitted stay so: `admission: feasible` of policy slack.

What is admitted may need a share of the engines' time soon, and no more than all of it in the long run. A request is
judged by what it adds: one that joins a batch costs little, one that begins a group costs all of its steps. So near
the limit those that begin a group are refused first. Lengths of answers are those seen so far, never those to come.
A model that generates nothing has no steps: its prompts are all that it needs.
"""

from __future__ import annotations

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.estimate import Estimate
from aegaeon_scheduler.core.policies.slack.demand import Demand, Need, answer_tokens, lives
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.packing import Packing
from aegaeon_scheduler.core.policies.slack.sequences import tokens
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Sequence


class Gate:
    """Keeps the demand of what is admitted: measured at each pass, arrivals since then added."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table) -> None:
        self._pool = pool
        self._settings = settings
        self._table = table
        self._demand = Demand()
        self._packing = Packing()
        self._soon = settings.soon_share
        self._late = 0
        self._at = 0.0

    def measure(self, now: float) -> None:
        """A pass is over."""
        self._learn(now)
        measured = (self._need(group, now) for group in self._table.groups.values() if group.members)
        needs = [need for need in measured if need is not None]
        self._demand.measure(needs)
        self._packing.measure(needs)

    def _learn(self, now: float) -> None:
        """Requests that came late say that too much is admitted; where none does, more may be."""
        settings, engines = self._settings, len(self._pool.instances)
        groups = self._table.groups.values()
        late = sum(len(group.members) - group.urgency(now, 0.0)[1] for group in groups)
        rise = settings.soon_rise * (now - self._at) if late <= self._late else 0.0
        fall = settings.soon_fall * max(0, late - self._late) / max(1, engines)
        self._soon = min(max(self._soon + rise - fall, settings.soon_least), settings.soon_most)
        self._late, self._at = late, now

    def _need(self, group: Group, now: float) -> Need | None:
        inst = group.inst or next((i for i in self._pool.fleet.of(group.model).open if group.may_go(i)), None)
        key, alive = group.urgency(now, 0.0)
        if inst is None or not alive or group.model.footprint is None:
            return None  # late members ride along
        estimates, slo, model = self._pool.estimates, group.model.config.slo, group.model
        estimate = estimates.of(model.name, inst.device)
        step_s = 0.0 if model.pools else _step_s(estimate, group.size()[0], len(group.members), inst)
        copies_s = 0.0 if group.ready() else estimate.load_s(model.fp.weight_bytes) + estimate.kv_s(_kv_bytes(group))
        prompts_s, level = group.prompts_s(estimates, inst), model.config.terms.tier.level
        return Need(level, step_s, slo.tbt_s, key - now, alive, answer_tokens(model), prompts_s, copies_s)

    def too_much(self, seq: Sequence, group: Group | None, now: float) -> str | None:
        """Why a new sequence is refused, or None: it is counted from here on. `group` is the one that it would join."""
        other = Role.DECODE if seq.model.pools else Role.PREFILL  # whose time it does not take
        able = [i for i in self._pool.fleet.of(seq.model).open if i.role is not other]
        if seq.model.footprint is None or not able:
            return None
        inst = able[0] if group is None or group.inst is None else group.inst
        before = None if group is None else self._need(group, now)
        cost = _Cost(self._pool.estimates.of(seq.model.name, inst.device), seq, inst, group, before)
        why = self._flooded(cost, before) or self._full(cost, len(able))
        if why is None:
            self._demand.add(cost.need)
            self._packing.add(cost.need)
        return why

    def _flooded(self, cost: _Cost, before: Need | None) -> str | None:
        """Returns why a group alone would need too much of the one engine that it has, if it would."""
        span_s = self._settings.soon_ttfts * cost.ttft_s
        if before is None:
            return None
        needed_s = before.within(span_s) + cost.prompt_s
        if needed_s > self._soon * span_s or cost.step_s > self._soon * before.tbt_s:
            return f"its model needs {needed_s / span_s:.0%} of an engine's next {span_s:.3g} s already; try again"
        return None

    def _full(self, cost: _Cost, engines: int) -> str | None:
        """Returns why the pool would need too much of its engines, soon or in the long run, or of its links, if so."""
        settings, ttft_s, need = self._settings, cost.ttft_s, cost.need
        soon = self._busy(need, settings.soon_ttfts * ttft_s, engines)
        later = self._busy(need, settings.later_ttfts * ttft_s, engines)
        copies_s = self._demand.copies_s(need.level) + need.copies_s if need.copies_s else 0.0
        if soon > self._soon - settings.group_price * cost.share or later > settings.later_share:
            return f"requests before it need {soon:.0%} of the engines' time soon, {later:.0%} later; try again"
        least = self._packing.least(need.level, engines) + need.util
        if least > 1.0 + settings.packed_ttfts * ttft_s / (need.tokens * need.tbt_s):
            return f"no engine has time for its steps: they would need {least:.0%} of the least busy one; try again"
        if copies_s > settings.link_share * engines * ttft_s:
            return f"{copies_s:.3g} s of loads are before it on {engines} engines; try again"
        return None

    def _busy(self, need: Need, span_s: float, engines: int) -> float:
        return self._demand.within(need.level, span_s) / (engines * span_s)


class _Cost:
    """Engine time that one more sequence adds. `share`: of what it would cost if it ran all alone."""

    def __init__(
        self, estimate: Estimate, seq: Sequence, inst: Instance, group: Group | None, before: Need | None
    ) -> None:
        model, length, answer = seq.model, tokens(seq), answer_tokens(seq.model)
        slo, level = model.config.slo, model.config.terms.tier.level
        context, batch = (0, 0) if group is None else (group.size()[0], len(group.members))
        alive, had_s = (0, 0.0) if before is None else (before.alive, before.step_s)
        self.ttft_s = slo.ttft_s
        self.prompt_s = estimate.prefill_s(length)
        self.step_s = 0.0 if model.pools else _step_s(estimate, context + length, batch + 1, inst)
        lasting_s = self.step_s * lives(answer, alive + 1) - had_s * lives(answer, alive)
        alone_s = self.prompt_s if model.pools else answer * estimate.step_s(0, 1)
        self.share = (self.prompt_s + lasting_s) / alone_s
        copies_s = 0.0 if group is not None else estimate.load_s(model.fp.weight_bytes)
        self.need = Need(level, self.step_s - had_s, slo.tbt_s, slo.ttft_s, 1, answer, self.prompt_s, copies_s)


def _step_s(estimate: Estimate, context_tokens: int, members: int, inst: Instance) -> float:
    """Seconds in which each member makes a token: more than a batch takes turns."""
    turns = -(-members // inst.max_batch)
    return estimate.step_s(context_tokens, members) + (turns - 1) * estimate.step_s(0, 0)


def _kv_bytes(group: Group) -> int:
    return group.size()[1] * group.model.fp.kv_block_bytes
