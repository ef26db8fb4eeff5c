"""Decode turns while the scheduler is late: longer, reported once, and over before anything else is due."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_core.test_overtaking import STEP_S, shortened
from scheduler_core.test_slack import Watched
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import ModelName, Role
from aegaeon_scheduler.core.log import LogWriter, replay
from aegaeon_scheduler.core.policies.slack.order import due
from aegaeon_scheduler.core.state import Instance
from aegaeon_simulator.pool.world import World

QUANTUM, LANE = 8, 2


def stretch(world: World, factor: int, at: float = 0.0) -> None:
    world.clock.at(at, lambda: world.feed(ev.TurnsStretched(factor)))


def decodes(w: Watched, since: float = 0.0, until: float = 1e9) -> list[cmd.Turn]:
    bodies = [send.body for at, send in w.sends if since <= at < until]
    return [body for body in bodies if isinstance(body, cmd.Turn) and body.decode]


def test_turns_are_longer_until_the_scheduler_is_in_time_again():
    w = Watched([Role.UNIFIED], ttfts=(10.0,))
    w.ask("long", 0, 40, 900)
    stretch(w.world, 4, at=1.0)
    stretch(w.world, 8, at=2.0)
    stretch(w.world, 1, at=5.0)
    w.world.run(20)
    assert w.all_finished()
    late = [(1.2, 2.0, 4), (3.0, 5.0, 8), (7.0, 20.0, 1)]
    for since, until, factor in late:
        turns = decodes(w, since, until)
        assert {(turn.steps, turn.report_steps) for turn in turns} == {(factor * QUANTUM, (factor > 1) * factor * 8)}


def test_a_long_turn_is_reported_once():
    ends: list[ev.TurnProgress] = []

    def observe(now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if isinstance(event, ev.TurnProgress):
            ends.append(event)

    world = small_world([Role.UNIFIED], ttfts=(10.0,), observe=observe)
    client = world.request("long", ModelName("m0"), 40, 1 + 64 * 8, 0.1)
    stretch(world, 8)
    world.run(20)
    assert client.finished
    assert len(client.times) == 1 + 64 * 8
    assert [event.steps for event in ends if event.steps][:7] == [64] * 7


@pytest.mark.parametrize(("ttft_s", "steps"), [(2.0, 19), (0.5, 8)])
def test_a_lane_of_long_turns_takes_a_fifth_of_ttft_at_most(ttft_s: float, steps: int):
    w = Watched([Role.UNIFIED], ttfts=(ttft_s,))
    w.ask("long", 0, 40, 500)
    stretch(w.world, 8)
    w.world.run(20)
    assert {turn.steps for turn in decodes(w)} == {steps}


def test_a_newcomer_cuts_a_long_turn_short():
    w = Watched([Role.UNIFIED], slabs=250, ttfts=(10.0,))
    w.ask("warm", 1, 40, 2, at=0.1)
    w.ask("long", 0, 40, 600, at=0.5)
    stretch(w.world, 8)
    newcomers = [w.ask("other", 1, 40, 30, at=2.0037), w.ask("same", 0, 40, 30, at=3.5037)]
    w.world.run(30)
    assert w.all_finished()
    assert 1 in shortened(w)
    assert max(client.times[0] for client in newcomers) < 2 * STEP_S + 0.016


def test_where_memory_is_short_long_turns_get_fewer_steps_and_nothing_is_swapped_out_for_them():
    w = Watched([Role.UNIFIED], slabs=100 + 34, ttfts=(10.0,), max_batch=8)
    for number in range(8):
        w.ask(f"r{number}", 0, 40, 400)
    stretch(w.world, 8)
    w.world.run(30)
    assert w.all_finished()
    assert not w.bodies(cmd.SwapOut)
    assert {turn.steps for turn in decodes(w)} == {16, 64}


class Lengths:
    """Observes engines: longer turns, and those of them that end after something else there is due."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.longer = 0
        self.wrong: list[str] = []

    def __call__(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        for command in commands:
            if isinstance(command, cmd.Send) and isinstance(command.body, cmd.Turn) and command.body.steps > QUANTUM:
                assert self.world is not None
                self._look(self.world.scheduler._pool.instances[command.instance], command.body, now)

    def _look(self, inst: Instance, turn: cmd.Turn, now: float) -> None:
        self.longer += 1
        rest = [seq for seq in inst.sequences.values() if seq.model.name != turn.model and due(seq) >= now]
        soonest = min(map(due, rest), default=now + 1e9)
        if soonest < now + LANE * turn.steps * 0.01:
            self.wrong.append(f"{now:.3f}: {turn.steps} steps of {turn.model}, others are due at {soonest:.3f}")


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([2, 5, 9]))
def test_a_longer_turn_ends_before_anything_else_on_its_engine_is_due(seed, models):
    rng, seen = Random(seed), Lengths()
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(latency=latency, hold_s=1e9, refine=False)
    world = small_world([Role.UNIFIED], models=models, slabs=2400, config=config, observe=seen)
    seen.world = world
    for number in range(60):
        name, size = ModelName(f"m{rng.randrange(models)}"), rng.choice([20, 400, 1500])
        world.request(f"r{number}", name, size, rng.randrange(5, 150), rng.uniform(0.1, 10.0))
    for at in range(12):
        stretch(world, rng.choice([1, 2, 4, 8, 8]), at=float(at))
    world.run(200)
    world.scheduler.check()
    assert all(client.finished for client in world.clients.values())
    assert seen.longer
    assert not seen.wrong


def test_a_replay_needs_the_event_and_gives_the_same_turns(tmp_path):
    path, config = tmp_path / "log.jsonl", SchedulerConfig()
    with path.open("w") as out:
        writer = LogWriter(out, config, "test")
        world = small_world([Role.UNIFIED], config=config, observe=writer.write)
        world.request("long", ModelName("m0"), 40, 200, 0.1)
        stretch(world, 2, at=1.0)
        world.run(10)
    assert replay(path).same
    kept = [line for line in path.read_text().splitlines() if "TurnsStretched" not in line]
    path.write_text("\n".join(kept) + "\n")
    assert "steps=16" in replay(path).difference
