"""Who waits for an engine, for how long at most, and what a preemption costs: docs/policy.md, propositions on places.

What a pass did is judged from the state that it left, without the code that looks for places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations
from math import ceil, inf
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ModelName, Role, SeqId, Terms, Tier
from aegaeon_scheduler.core.policies.slack.engines import View
from aegaeon_scheduler.core.policies.slack.group import Group, Load
from aegaeon_scheduler.core.policies.slack.order import due
from aegaeon_scheduler.core.policies.slack.place import absence_s
from aegaeon_scheduler.core.policies.slack.policy import PASS_INTERVAL_S, SlackPolicy
from aegaeon_scheduler.core.state import Sequence
from aegaeon_simulator.pool.world import World

TTFT_S, TBT_S = 2.0, 0.1  # of every model in small_world
SETTINGS = SlackSettings()
STAY_S = 0.5
LOAD_S = 0.2  # of any model, and TURN_S of a decode turn or a prompt, at most
TURN_S = 0.1


class Pool:
    """A world that is observed after every event."""

    def __init__(
        self, engines: int, models: int, slabs: int, tiers: Iterable[Tier] = (), knobs: dict | None = None
    ) -> None:
        latency = LatencyConstants(load_bytes_per_s=(100 << 20) / LOAD_S, kv_bytes_per_s=4e9)
        policy = replace(SETTINGS, **(knobs or {}))
        config = SchedulerConfig(policy=policy, latency=latency, hold_s=1e9, refine=False)
        terms = {ModelName(f"m{i}"): Terms(tier) for i, tier in enumerate(tiers)}
        self.ready = False
        roles = [Role.UNIFIED] * engines
        self.world: World = small_world(
            roles, models=models, slabs=slabs, host_slabs=4000, config=config, terms=terms, observe=self._observe
        )
        self.ready = True

    def _observe(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if self.ready:
            self.look(now, event, commands)

    def look(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        """After an event."""

    @property
    def policy(self) -> SlackPolicy:
        policy = self.world.scheduler._policy
        assert isinstance(policy, SlackPolicy)
        return policy

    def play(self, requests) -> None:
        """Requests (arrival, model, prompt, answer), until all have their answer."""
        for i, (at, model, prompt, answer) in enumerate(requests):
            self.world.request(f"r{i}", ModelName(f"m{model}"), prompt, answer, at=at)
        self.world.run(400)
        assert all(client.finished for client in self.world.clients.values())


class Places(Pool):
    """Looks after each pass for groups with little slack that wait although an engine could take them."""

    def __init__(self, *given) -> None:
        self.waited: set[Group] = set()
        self.pass_from = -inf
        self.in_vain = 0
        self.wrong: list[str] = []
        super().__init__(*given)

    def look(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        table, pass_from = self.policy._table, self.policy._pool.pass_from
        if pass_from != self.pass_from:  # of several events of one moment one has made a pass
            for group in table.waiting.values():
                if group in self.waited and group.members and all(s.copy is None for s in group.members.values()):
                    self._waits(group, now)
            self._ranks(list(table.groups.values()), now)
        self.waited, self.pass_from = set(table.waiting.values()), pass_from

    def _ranks(self, groups: list[Group], now: float) -> None:
        """A group comes before another one only if it is due less than (0.3 + 0.5 tiers) TTFT later."""
        orders = [(g, g.order(now, SETTINGS)) for g in groups if g.urgency(now, SETTINGS.late_slack_s)[1]]
        for (one, first), (other, second) in permutations(orders, 2):
            tiers = other.model.config.terms.tier.level - one.model.config.terms.tier.level
            if first.rank < second.rank and first.key >= second.key + (0.3 + 0.5 * tiers) * TTFT_S:
                self.wrong.append(f"{now:.3f} {one.model.name} comes before {other.model.name}")

    def _waits(self, group: Group, now: float) -> None:
        key, alive = group.urgency(now, SETTINGS.late_slack_s)
        if not alive or key - now >= 0.5 * TTFT_S:
            return
        for inst in self.policy._pool.instances.values():
            view = self.policy._table.view(inst)
            busy = inst.wanted or inst.incoming or inst.book.loads
            if not busy and group.model.name not in view.models:
                self.in_vain += 1
                if not self._held(group, view, now):
                    self.wrong.append(f"{now:.3f} {group.model.name} waits though {inst.id} could take it")

    def _held(self, group: Group, view: View, now: float) -> bool:
        """Whether groups that cannot be preempted for it leave no room."""
        comer = Load.of(group, self.policy._pool.estimates, view.inst).note(now, SETTINGS)
        stays = [x for x in view.loads if self._stays(x.note(now, SETTINGS), comer, view, now)]
        return bool(stays) and sum(x.nbytes for x in stays) + comer.nbytes > view.fits

    def _stays(self, x: Load, comer: Load, view: View, now: float) -> bool:
        above = x.group.model.config.terms.tier.level > comer.group.model.config.terms.tier.level
        if now - x.group.since < STAY_S or not x.group.may_leave(begun=above):
            return True
        away_s = absence_s(self.policy._pool.estimates, x, comer, view.inst)
        price_s = 4.0 * away_s if len(view.loads) == 1 and not above else 0.0
        return x.rank <= comer.rank + max(0.3 * TTFT_S, price_s)


MODELS = 16
SEEDS = st.integers(0, 10**6)


def drawn(seed: int) -> list[tuple[float, int, int, int]]:
    """More than an engine carries, for some seconds: arrival, model, tokens of prompt and answer."""
    rng = Random(seed)
    sizes = [20, 300, 1500]
    return [(rng.uniform(0.1, 6.0), rng.randrange(MODELS), rng.choice(sizes), rng.randrange(5, 300)) for _ in range(70)]


@settings(max_examples=examples(25), deadline=None)
@given(SEEDS, st.booleans(), st.integers(1, 2), st.sampled_from([160, 270, 2000]))
@example(9, True, 1, 270)  # a load ends at the moment of a pass, after it
@example(38, True, 2, 160)  # a group outgrows its engine in the same pass
def test_a_group_with_little_slack_waits_only_where_those_due_before_leave_no_room(seed, tiers, engines, slabs):
    levels = Random(seed).choices(list(Tier), k=MODELS * tiers)
    pool = Places(engines, MODELS, slabs, levels)
    pool.play(drawn(seed))
    assert not pool.wrong


@dataclass
class Preemption:
    """A group came for another one, whose members these are: its most urgent request, and when that was due then."""

    at: float
    victims: set[SeqId]
    seq: Sequence
    due: float
    alive: int


class Preemptions(Pool):
    """Looks at groups that preempt each other in turn: what did the one that came first do meanwhile?"""

    def __init__(self, *given) -> None:
        self.last: dict[tuple[Group, Group], Preemption] = {}  # by victim and comer
        self.members: dict[Group, set[SeqId]] = {}  # of those that were on an engine before the event
        self.shortest_s = inf
        self.wrong: list[str] = []
        super().__init__(*given)

    def look(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        pairs: dict[tuple[Group, Group], None] = {}
        for command in commands:
            by_pass = isinstance(event, ev.Tick) and isinstance(command, cmd.Send)
            if by_pass and command.reason.startswith("preempted by "):
                comer = command.reason.removeprefix("preempted by ").split(",")[0]
                victim = self.policy._pool.sequences[command.body.seq].batch
                here = self.policy._table.at(self.policy._pool.instances[command.instance])
                pairs |= {(victim, group): None for group in here if group.model.name == comer}
        for victim, comer in pairs:
            if victim.members.keys() <= self.members.get(victim, set()):  # not just united, nor the half of another
                self._preempted(victim, comer, now)
        self.members = {group: set(group.members) for group in self.policy._table.groups.values() if group.inst}

    def _preempted(self, victim: Group, comer: Group, now: float) -> None:
        margin_s = victim.order(now, SETTINGS).rank - comer.order(now, SETTINGS).rank
        if margin_s <= 0.3 * TTFT_S - 1e-9:
            self.wrong.append(f"{now:.3f} {victim.model.name} leaves for {comer.model.name}, {margin_s:.3g} s later")
        self.shortest_s = min(self.shortest_s, now - victim.since)
        before = self.last.pop((comer, victim), None)
        if before is not None and comer.members.keys() <= before.victims:  # none that is due sooner has joined
            name = f"{victim.model.name}, which came for {comer.model.name} at {before.at:.3f}"
            self.wrong += [] if self._has_progressed(before, victim, now) else [f"{now:.3f} {name}"]
        alive = [seq for seq in comer.members.values() if due(seq) >= now]
        if alive:
            first = min(alive, key=due)
            self.last[victim, comer] = Preemption(now, set(victim.members), first, due(first), len(alive))

    def _has_progressed(self, before: Preemption, group: Group, now: float) -> bool:
        """It has ended, is late, or its reader has 0.6 TTFT more to read; 0.3 where others have ended meanwhile."""
        seq, alive = before.seq, group.urgency(now, SETTINGS.late_slack_s)[1]
        if group.members.get(seq.id) is not seq or due(seq) < now:
            return True
        least = 0.6 if alive >= before.alive else 0.3
        return due(seq) - before.due > least * TTFT_S - 1e-9


@settings(max_examples=examples(25), deadline=None)
@given(SEEDS, st.sampled_from([(1, 130), (2, 130), (1, 1150)]))
def test_groups_that_preempt_each_other_have_made_progress_and_stayed(seed, size):
    pool = Preemptions(size[0], MODELS, size[1], ())
    pool.play(drawn(seed))
    assert not pool.wrong
    assert pool.shortest_s >= STAY_S


class Newcomer(Pool):
    """When the last request of all was given an engine, and the bound on that as of its arrival; seconds."""

    def __init__(self, *given) -> None:
        self.bound_s = self.waited_s = -1.0
        super().__init__(*given)

    def look(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        seq = next((s for s in self.policy._pool.sequences.values() if s.model.name == "m9"), None)
        group = self.policy._table.group(seq) if seq is not None else None
        if group is not None and self.bound_s < 0.0:
            self.bound_s = self._bound_s(group, now)
        if group is not None and group.inst is not None and self.waited_s < 0.0:
            self.waited_s = now - seq.arrival

    def _bound_s(self, group: Group, now: float) -> float:
        views = [self.policy._table.view(inst) for inst in self.policy._pool.instances.values()]
        estimates = self.policy._pool.estimates
        comer = Load.of(group, estimates, views[0].inst)
        away_s = max(absence_s(estimates, x, comer, v.inst) for v in views for x in v.loads)
        end = now + TTFT_S + 0.3 * TTFT_S + max(0.3 * TTFT_S, 4.0 * away_s)
        others = [g for g in self.policy._table.groups.values() if g is not group]
        before = [due(s) for g in others for s in g.members.values() if due(s) < end]
        turns = sum(ceil((end - at) / (8 * TBT_S)) for at in before) + sum(len(g.prompts) for g in others)
        switch_s = LOAD_S + 0.05 + STAY_S + PASS_INTERVAL_S
        return turns * TURN_S / len(views) + (len(before) + 1) * switch_s


@pytest.mark.parametrize(
    ("engines", "streams", "at"), [(1, 1, 1.2), (1, 2, 1.5), (1, 2, 8.0), (2, 2, 2.5), (2, 4, 8.0)]
)
def test_a_newcomer_has_an_engine_within_its_bound_however_long_the_answers_of_others_are(engines, streams, at):
    pool = Newcomer(engines, 10, 150)
    pool.play([*((0.1 + 0.1 * i, i, 50, 1500) for i in range(streams)), (at, 9, 50, 5)])
    assert 0.0 <= pool.waited_s <= pool.bound_s <= TTFT_S
