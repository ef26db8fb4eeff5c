"""How many turns of others a group waits for on an engine: docs/policy.md, propositions on turns.

Bounds are computed from requests alone, by the formulas of that page, when a group begins to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import CommandId, ModelName, Place, Role, SeqId, Stage, Terms, Tier
from aegaeon_scheduler.core.policies.slack.group import Group
from aegaeon_scheduler.core.policies.slack.order import due
from aegaeon_scheduler.core.state import Instance, Issued, Sequence
from aegaeon_simulator.pool.world import World

TTFT_S, TBT_S = 2.0, 0.1  # of every model in small_world
STEPS = 8  # of a decode turn
MAX_BATCH = 16  # of its members
LANE = 2  # turns on it
SLABS = 5000
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
        self.turns: dict[CommandId, Group] = {}
        self.dropped: set[CommandId] = set()
        self.may_lack: set[CommandId] = set()  # turns for which a KV block may be missing, and for which one was
        self.lacked: set[CommandId] = set()
        self.joined: set[tuple[CommandId, SeqId]] = set()  # these may have begun a step later

    @property
    def engine(self) -> Instance:
        assert self.world is not None
        return next(iter(self.world.scheduler._pool.instances.values()))

    def __call__(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if self.world is None or not self.world.scheduler._pool.instances:
            return
        self.waits = {g: w for g, w in self.waits.items() if w.due >= now and g.members.get(w.seq.id) is w.seq}
        if isinstance(event, ev.TurnProgress):
            self._reported(event)
        elif isinstance(event, ev.Submitted):
            self._joins(self.world.scheduler._pool.sequences[event.seq])
        cut = sum(self._sent(command) for command in commands if isinstance(command, cmd.Send))
        if cut > 2 * isinstance(event, ev.Submitted | ev.CommandDone):
            self.over.append(f"{cut} turns are cut short for {event}")
        self._begin(now)

    def _sent(self, send: cmd.Send) -> bool:
        """Whether a turn is cut short by it."""
        if isinstance(send.body, cmd.Turn):
            self._turn(self.engine.commands[send.id])
        if not isinstance(send.body, cmd.Amend):
            return False
        self.joined |= {(send.body.turn, seq) for seq in send.body.join}
        if send.body.steps == 0:
            self.dropped.add(send.body.turn)
        if send.body.steps is not None:
            self._comes_again(self.turns[send.body.turn])
        return send.body.steps is not None

    def _reported(self, event: ev.TurnProgress) -> None:
        """A turn in which a member found no KV block is cut short, for a reason: a request ended in it, and slabs went
        with it; or its members have not the KV that was projected, as the turn before had fewer or more steps.
        """
        group = self.turns[event.turn]
        queued = {turn.id for turn in self.engine.turns if turn.batch is group}
        lacks = any(progress.starved for progress in event.progress)
        if lacks and event.turn not in self.lacked:
            self.lacked.add(event.turn)
            self._comes_again(group)
        if any(progress.finish is not None for progress in event.progress):
            self.may_lack |= {event.turn} | queued
        elif lacks or (event.turn in self.dropped and event.steps):
            self.may_lack |= queued

    def _comes_again(self, group: Group) -> None:
        """What was cut off a turn of it takes one more."""
        for other, wait in self.waits.items():
            wait.left += other is not group

    def _joins(self, seq: Sequence) -> None:
        if is_long(seq):
            self.waits.pop(seq.batch, None)
        for group, wait in self.waits.items():
            if seq.batch is not group:
                turns = turns_until(seq.arrival + TTFT_S, horizon(wait.due, group, seq.batch))
                wait.left += prompt_turns(seq) + LANE - 1 + turns

    def _turn(self, turn: Issued) -> None:
        assert isinstance(turn.batch, Group)
        self.turns[turn.id] = turn.batch
        if any(self._ahead_of_reports(seq) for seq in turn.members.values()):
            self.may_lack.add(turn.id)
        self.waits.pop(turn.batch, None)
        for group, wait in self.waits.items():
            wait.left -= 1
            if wait.left < 0:
                self.over.append(f"{group.model.name} waits while {turn.batch.model.name} gets a turn")

    def _begin(self, now: float) -> None:
        groups = [g for g in self.world.scheduler._policy._table.at(self.engine) if g.members]
        for group in groups:
            seq = min((s for s in group.members.values() if due(s) >= now), key=due, default=None)
            if seq is None or group in self.waits or not (group.ready() and could_run(seq)):
                continue
            if any(is_long(prompt) for prompt in group.prompts.values()):
                continue
            if group.prompts or due(seq) - now <= TTFT_S:
                left = sum(self._ahead(other, group, due(seq), now) for other in groups if other is not group)
                self.waits[group] = Wait(seq, due(seq), left)
                self.waits_begun += 1

    def _ahead(self, other: Group, group: Group, due_at: float, now: float) -> int:
        """Turns that another group may get before: those of its batches until all of it is due later, and its prompts.

        Late members count as well: they run along, and may be in time again.
        """
        end, members = horizon(due_at, group, other), other.members.values()
        if min((self._due(seq) for seq in members if due(seq) >= now), default=end) >= end:
            return 0
        decode = [turns_until(self._due(seq), end) for seq in members if seq.stage is Stage.DECODE]
        prompts = [turns_until(due(seq), end) + LANE - 1 for seq in members if seq.stage is not Stage.DECODE]
        issued = sum(prompt_turns(seq) for seq in other.prompts.values())
        most = max(decode, default=0)
        if len(decode) > MAX_BATCH:
            most = ceil((sum(decode) + (MAX_BATCH - 1) * most) / MAX_BATCH)
        return most + sum(prompts) + issued

    def _due(self, seq: Sequence) -> float:
        """When its next token is due, by what was reported of it and what turns on the lane still compute."""
        return due(seq) - self._ahead_of_reports(seq) * TBT_S

    def _ahead_of_reports(self, seq: Sequence) -> int:
        """Steps that count as run though no turn computes them: cut off, or missed by who joined or lacked a block."""
        turns = [turn for turn in self.engine.turns if seq.id in turn.members and not turn.dropped]
        steps = sum(turn.steps - turn.steps_done - ((turn.id, seq.id) in self.joined) for turn in turns)
        return max(0, seq.projected_kv - seq.kv_tokens - steps) if seq.stage is Stage.DECODE else 0


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


def played(requests, tiers: list[Tier]) -> TurnsOfOthers:
    """All of them on one engine with room for all models."""
    seen = TurnsOfOthers()
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(latency=latency, hold_s=1e9, refine=False)
    terms = {ModelName(f"m{i}"): Terms(tier) for i, tier in enumerate(tiers)}
    world = small_world(
        [Role.UNIFIED], models=MODELS, slabs=SLABS, max_batch=MAX_BATCH, config=config, observe=seen, terms=terms
    )
    seen.world = world
    for i in range(MODELS):
        world.request(f"warm{i}", ModelName(f"m{i}"), 20, 1, at=0.1)
    for i, (at, model, prompt, answer) in enumerate(requests):
        world.request(f"r{i}", ModelName(f"m{model}"), prompt, answer, at=at)
    world.run(300)
    assert all(client.finished for client in world.clients.values())
    return seen


Traffic = tuple[list[tuple[float, int, int, int]], list[Tier]]
"""requests (arrival, model, tokens of prompt and answer), and the tiers of models; none where all are alike"""


def even(seed: int) -> Traffic:
    """More than the engine carries, of all models, once they are on it."""
    rng, sizes = Random(seed), [20, 400, 1500, 4000]
    spread = [
        (rng.uniform(4.0, 9.0), rng.randrange(MODELS), rng.choice(sizes), rng.randrange(5, 150)) for _ in range(60)
    ]
    return spread, []


def varied(seed: int) -> Traffic:
    """Few models with more requests than a turn computes, or many; long prompts or none; some come at one moment."""
    rng = Random(seed)
    requests, seconds = rng.choice([20, 40, 60, 90]), rng.choice([0.5, 2, 5, 10])
    models = rng.choice([2, 3, 5, 8, MODELS])
    sizes = rng.choice([[20], [20, 400], [1500, 3000], [20, 400, 1500, 4000], [3500, 3700, 4090]])
    answers = rng.choice([(1, 10), (5, 150), (100, 300), (1, 300)])
    in_bursts, drawn = rng.random() < 0.3, []
    for _ in range(requests):
        at = rng.uniform(4, 4 + seconds)
        at = round(at * 2) / 2 if in_bursts else at
        drawn.append((at, rng.randrange(models), rng.choice(sizes), rng.randrange(*answers)))
    return drawn, [rng.choice(list(Tier)) for _ in range(MODELS)] if rng.random() < 0.5 else []


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([even, varied]))
@example(468, even)  # a request ends in a turn, and another one of it finds no KV block
@example(37, even)  # nor in the next turn, which was queued
@example(4886024, varied)  # nor in one behind a turn that was dropped, and had begun
@example(2890436, varied)  # a group has more members than a turn computes
@example(9376097, varied)  # a group whose prompt is on the lane decodes meanwhile
@example(957, varied)  # late ones need more turns, and come behind those in time until the batch is no longer full
@example(39048590, varied)  # a turn that is on the lane has been cut short
def test_a_group_waits_for_no_more_turns_of_others_than_are_due_before(seed, traffic):
    seen = played(*traffic(seed))
    assert not seen.over
    assert seen.lacked <= seen.may_lack
