"""How many turns of others a group waits for on an engine: docs/policy.md, propositions on turns.

Bounds are computed from requests alone, by the formulas of that page, when a group begins to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import ModelName, Place, Role, Stage, Terms, Tier
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.sequences import due
from aegaeon_scheduler.core.state import Instance, Issued, Sequence
from aegaeon_simulator.pool.world import World

TTFT_S, TBT_S = 2.0, 0.1  # of every model in small_world
STEPS = 8  # of a decode turn
PART = 512  # tokens of a part of a long prompt, at least
MODELS = 14  # one step of each takes a tenth of TBT: together more than the engine has


@dataclass
class Wait:
    """A group that could run, its most urgent request in time, and how many turns may still go to others."""

    seq: Sequence
    due: float
    left: int


class TurnsOfOthers:
    """Observes one engine: counts the turns that go to others while a group waits for one."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.waits: dict[Group, Wait] = {}
        self.over: list[str] = []
        self.waits_begun = 0

    @property
    def engine(self) -> Instance:
        assert self.world is not None
        return next(iter(self.world.scheduler._pool.instances.values()))

    def __call__(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if self.world is None or not self.world.scheduler._pool.instances:
            return
        self.waits = {g: w for g, w in self.waits.items() if w.due >= now and g.members.get(w.seq.id) is w.seq}
        if isinstance(event, ev.Submitted):
            self._joins(self.world.scheduler._pool.sequences[event.seq])
        bodies = [(command.id, command.body) for command in commands if isinstance(command, cmd.Send)]
        for id, body in bodies:
            if isinstance(body, cmd.Turn):
                self._turn(self.engine.commands[id])
            elif isinstance(body, cmd.Amend) and body.steps is not None:
                for wait in self.waits.values():
                    wait.left += 1  # what was cut off comes again
        self._begin(now)

    def _joins(self, seq: Sequence) -> None:
        if is_long(seq):
            self.waits.pop(seq.batch, None)
        for group, wait in self.waits.items():
            if seq.batch is not group:
                wait.left += prompt_turns(seq) + turns_until(seq.arrival + TTFT_S, horizon(wait.due, group, seq.batch))

    def _turn(self, turn: Issued) -> None:
        assert isinstance(turn.tag, Group)
        self.waits.pop(turn.tag, None)
        for group, wait in self.waits.items():
            wait.left -= 1
            if wait.left < 0:
                self.over.append(f"{group.model.name} waits while {turn.tag.model.name} gets a turn")

    def _begin(self, now: float) -> None:
        groups = [g for g in self.world.scheduler._policy._table.at(self.engine) if g.members]
        for group in groups:
            seq = min((s for s in group.members.values() if due(s) >= now), key=due, default=None)
            if seq is None or group in self.waits or not (group.ready() and could_run(seq)):
                continue
            if any(is_long(prompt) for prompt in group.prompts.values()):
                continue
            if group.prompts or due(seq) - now <= TTFT_S:
                left = sum(ahead(other, group, due(seq), now) for other in groups if other is not group)
                self.waits[group] = Wait(seq, due(seq), left)
                self.waits_begun += 1


def could_run(seq: Sequence) -> bool:
    return seq.stage is Stage.QUEUED or (seq.stage is Stage.DECODE and seq.place is Place.DEVICE)


def is_long(seq: Sequence) -> bool:
    """Whether its prompt takes more than 0.1 s: it is computed in parts."""
    return seq.prompt_tokens > 3600


def prompt_turns(seq: Sequence) -> int:
    return ceil(seq.prompt_tokens / PART) if is_long(seq) else 1


def horizon(due_at: float, group: Group, other: Group) -> float:
    """Until when tokens of another group can be due that come before: d + (0.3 + 0.5 tiers) TTFT."""
    above = group.model.config.terms.tier.level - other.model.config.terms.tier.level
    return due_at + (0.3 + 0.5 * max(0, above)) * TTFT_S


def turns_until(due_at: float, end: float) -> int:
    """Decode turns after which a request that is due then is due later than this."""
    return max(0, ceil((end - due_at) / (STEPS * TBT_S) - 1e-9))


def ahead(other: Group, group: Group, due_at: float, now: float) -> int:
    """Turns that another group may get before: those of its batch until all of it is due later, and its prompts.

    Late members count as well: they run along, and may be in time again.
    """
    end, members = horizon(due_at, group, other), other.members.values()
    if min((due(seq) for seq in members if due(seq) >= now), default=end) >= end:
        return 0
    batch = max((turns_until(due(seq), end) for seq in members if seq.stage is Stage.DECODE), default=0)
    first = sum(prompt_turns(seq) for seq in other.prompts.values())
    return batch + first + sum(turns_until(due(seq), end) for seq in members if seq.stage is not Stage.DECODE)


def played(requests, tiers: list[Tier]) -> TurnsOfOthers:
    """All of them on one engine with room for all models."""
    seen = TurnsOfOthers()
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(latency=latency, hold_s=1e9, refine=False)
    terms = {ModelName(f"m{i}"): Terms(tier) for i, tier in enumerate(tiers)}
    world = small_world([Role.UNIFIED], models=MODELS, slabs=2400, config=config, observe=seen, terms=terms)
    seen.world = world
    for i in range(MODELS):
        world.request(f"warm{i}", ModelName(f"m{i}"), 20, 1, at=0.1)
    for i, (at, model, prompt, answer) in enumerate(requests):
        world.request(f"r{i}", ModelName(f"m{model}"), prompt, answer, at=at)
    world.run(300)
    assert all(client.finished for client in world.clients.values())
    return seen


def drawn(seed: int) -> list[tuple[float, int, int, int]]:
    """More than the engine carries, once all models are on it: arrival, model, tokens of prompt and answer."""
    rng = Random(seed)
    sizes = [20, 400, 1500, 4000]
    return [(rng.uniform(4.0, 9.0), rng.randrange(MODELS), rng.choice(sizes), rng.randrange(5, 150)) for _ in range(60)]


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_a_group_waits_for_no_more_turns_of_others_than_are_due_before(seed, tiers):
    levels = [Random(seed).choice(list(Tier)) for _ in range(MODELS * tiers)]
    seen = played(drawn(seed), levels)
    assert seen.waits_begun
    assert not seen.over
