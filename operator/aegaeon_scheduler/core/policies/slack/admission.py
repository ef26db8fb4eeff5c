"""Admits a new request if it can be on time, and those admitted stay so: `admission: feasible` of policy slack.

What is admitted may need a share of the engines' time soon, and no engine more than its time. A request is
judged by what it adds: one that joins a batch costs little, one that begins a group costs all of its steps. So near
the limit those that begin a group are refused first. A group needs its next step when its first token is due, and
one each TBT from then on, for as long as the model's answers lasted so far. A model that generates nothing has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapreplace
from math import exp

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.estimate import Estimate
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import tokens
from aegaeon_scheduler.core.policies.slack.table import Table
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Model, Sequence

_ASSUMED_TOKENS = 200.0  # of an answer, as if one had been seen of each model
_MOST_ALIVE = 8  # members beyond which one more hardly changes how long the last one lives


def answer_tokens(model: Model, running: int = 0) -> float:
    """Tokens of an answer of this model, about: the tokens of those that run now count as well, and they themselves as
    so many answers."""
    return (model.output_tokens + _ASSUMED_TOKENS) / (model.ended + running + 1.0)


def lives(tokens: float, alive: int, due: float = 1e9) -> float:
    """Returns how many of `due` steps are expected before the last of `alive` members ends, after `tokens` each."""
    if due <= 0.0:
        return 0.0
    ended = power = 1.0 - exp(-due / tokens)
    steps = 0.0
    for i in range(1, min(alive, _MOST_ALIVE) + 1):
        steps += power / i
        power *= ended
    return min(due, tokens * steps)


@dataclass(frozen=True, slots=True)
class Need:
    """Engine time that a group needs. Seconds; `prompts_s` are those of its prompts, due within TTFT; `tokens` of an
    answer; `copies_s` on a link until it can run."""

    level: int
    step_s: float
    tbt_s: float
    slack_s: float
    alive: int
    tokens: float
    prompts_s: float
    copies_s: float = 0.0

    @property
    def util(self) -> float:
        """Share of an engine's time that its steps take in the long run."""
        return self.step_s / self.tbt_s

    def within(self, span_s: float) -> float:
        """Seconds of an engine."""
        return self.prompts_s + self.step_s * lives(self.tokens, self.alive, (span_s - self.slack_s) / self.tbt_s)


class Demand:
    """The needs of all groups as the last pass found them, and of what was admitted since; and the utilization of
    engines if all groups were placed anew, largest first, each on the least busy (LPT)."""

    def __init__(self) -> None:
        self._needs: list[Need] = []
        self._sums: dict[tuple[int, float], float] = {}  # by level and span: few objectives are asked for
        self._busy: dict[tuple[int, int], list[float]] = {}  # a heap by level and engines: few pairs are asked for

    def measure(self, needs: Iterable[Need]) -> None:
        """Begin anew."""
        self._needs = list(needs)
        self._sums, self._busy = {}, {}

    def add(self, need: Need) -> None:
        """One more is admitted: a group on the least busy engine, or it is so much busier."""
        self._needs.append(need)
        for level, span_s in self._sums:
            if need.level <= level:
                self._sums[level, span_s] += need.within(span_s)
        for (level, _), heap in self._busy.items():
            if need.level <= level:
                heapreplace(heap, heap[0] + need.util)

    def within(self, level: int, span_s: float) -> float:
        """Seconds of engines that groups of this tier and those above it need within this time."""
        key = (level, span_s)
        if key not in self._sums:
            self._sums[key] = sum(need.within(span_s) for need in self._needs if need.level <= level)
        return self._sums[key]

    def copies_s(self, level: int) -> float:
        """Seconds of links until all of this tier and those above it can run."""
        return sum(need.copies_s for need in self._needs if need.level <= level)

    def least(self, level: int, engines: int) -> float:
        """Returns the load of the least busy engine, by groups of this tier and those above it."""
        heap = self._busy.get((level, engines))
        if heap is None:
            heap = self._busy[level, engines] = [0.0] * engines
            for util in sorted((need.util for need in self._needs if need.level <= level), reverse=True):
                heapreplace(heap, heap[0] + util)
        return heap[0]


SOON_TTFTS, SOON_SHARE = 1.2, 0.62
"""what is admitted needs no more than this share of the engines' time within so many TTFT, and its loads no more of the
links' time: with less left, what is preempted does not come back in time"""
SOON_RISE, SOON_FALL = 0.004, 0.06
"""the share rises by so much a second while no request comes late, and falls, to what it was at first, by so much for
each that does and engine: how little slack is enough depends on how many groups take turns on an engine"""
GROUP_PRICE = 0.15
"""by this much less for a request that begins a group: it costs some times as much as one that joins a batch"""
PACKED_TTFTS = 0.7
"""an engine may need more time than it has for as long as an answer lasts, by this share of TTFT: what is generated
ahead at first is used up"""


class Gate:
    """Keeps the demand of what is admitted: measured at each pass, arrivals since then added."""

    def __init__(self, pool: Pool, settings: SlackSettings, table: Table) -> None:
        self._pool = pool
        self._table = table
        self._demand = Demand()
        self._soon = SOON_SHARE
        self._late = 0
        self._at = 0.0

    def measure(self, now: float) -> None:
        """A pass is over."""
        self._learn(now)
        measured = (self._need(group, now) for group in self._table.groups.values() if group.members)
        self._demand.measure(need for need in measured if need is not None)

    def _learn(self, now: float) -> None:
        """Requests that came late say that too much is admitted; where none does, more may be."""
        groups = self._table.groups.values()
        late = sum(len(group.members) - group.urgency(now, 0.0)[1] for group in groups)
        rise = SOON_RISE * (now - self._at) if late <= self._late else 0.0
        fall = SOON_FALL * max(0, late - self._late) / max(1, len(self._pool.instances))
        self._soon = min(max(self._soon + rise - fall, SOON_SHARE), 1.0)
        self._late, self._at = late, now

    def _need(self, group: Group, now: float) -> Need | None:
        inst = group.inst or next((i for i in self._pool.fleet.of(group.model).open if group.may_go(i)), None)
        key, alive = group.urgency(now, 0.0)
        if inst is None or not alive or group.model.footprint is None:
            return None  # late members ride along
        estimates, slo, model = self._pool.estimates, group.model.config.slo, group.model
        estimate = estimates.of(model.name, inst.device)
        step_s = 0.0 if model.pools else _step_s(estimate, group.size()[0], len(group.members), inst)
        kv_bytes = group.size()[1] * model.fp.kv_block_bytes
        copies_s = 0.0 if group.ready() else estimate.load_s(model.fp.weight_bytes) + estimate.kv_s(kv_bytes)
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
        need, share = _cost(self._pool.estimates.of(seq.model.name, inst.device), seq, inst, group, before)
        why = self._full(need, share, len(able))
        if why is None:
            self._demand.add(need)
        return why

    def _full(self, need: Need, share: float, engines: int) -> str | None:
        """Returns why the pool would need too much of its engines, if so."""
        ttft_s = need.slack_s
        span_s = SOON_TTFTS * ttft_s
        soon = self._demand.within(need.level, span_s) / (engines * span_s)
        if soon > self._soon - GROUP_PRICE * share:
            return f"requests before it need {soon:.0%} of the engines' time soon; try again"
        copies_s = self._demand.copies_s(need.level) + need.copies_s if need.copies_s else 0.0
        if copies_s > SOON_SHARE * engines * ttft_s:
            return f"{copies_s:.3g} s of loads are before it on {engines} engines; try again"
        least = self._demand.least(need.level, engines) + need.util
        if least > 1.0 + PACKED_TTFTS * ttft_s / (need.tokens * need.tbt_s):
            return f"no engine has time for its steps: they would need {least:.0%} of the least busy one; try again"
        return None


def _cost(
    estimate: Estimate, seq: Sequence, inst: Instance, group: Group | None, before: Need | None
) -> tuple[Need, float]:
    """Engine time that one more sequence adds, and the share of it of what it would cost if it ran all alone."""
    model, length, answer = seq.model, tokens(seq), answer_tokens(seq.model)
    slo, level = model.config.slo, model.config.terms.tier.level
    context, batch = (0, 0) if group is None else (group.size()[0], len(group.members))
    alive, had_s = (0, 0.0) if before is None else (before.alive, before.step_s)
    prompt_s = estimate.part_s(seq.cached_on(inst), length - seq.cached_on(inst))
    step_s = 0.0 if model.pools else _step_s(estimate, context + length, batch + 1, inst)
    lasting_s = step_s * lives(answer, alive + 1) - had_s * lives(answer, alive)
    alone_s = prompt_s if model.pools else answer * estimate.step_s(0, 1)
    copies_s = 0.0 if group is not None else estimate.load_s(model.fp.weight_bytes)
    need = Need(level, step_s - had_s, slo.tbt_s, slo.ttft_s, 1, answer, prompt_s, copies_s)
    return need, (prompt_s + lasting_s) / alone_s


def _step_s(estimate: Estimate, context_tokens: int, members: int, inst: Instance) -> float:
    """Seconds in which each member makes a token: more than a batch takes turns."""
    turns = -(-members // inst.max_batch)
    return estimate.step_s(context_tokens, members) + (turns - 1) * estimate.step_s(0, 0)
