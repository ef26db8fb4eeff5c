"""A prompt that comes while others decode ahead of their readers waits for a step of theirs, not for two turns."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_core.test_slack import Watched
from small_world import examples, small_world

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import ModelName, Role, Stage
from aegaeon_scheduler.core.state import Instance, Issued
from aegaeon_simulator.pool.world import World

STEP_S = 0.0101  # of one sequence, about; a prompt takes 0.015
TBT_S = 0.1  # of every model in small_world


def shortened(w: Watched) -> list[int]:
    return [body.steps for body in w.bodies(cmd.Amend) if body.steps is not None]


def met(policy: str = "slack", **knobs) -> tuple[Watched, list]:
    """Both models are resident; of m0 a long answer decodes for a second before prompts of m1 and m0 come."""
    w = Watched([Role.UNIFIED], knobs={"name": policy, **knobs}, slabs=250)
    w.ask("warm", 1, 40, 2, at=0.1)
    w.ask("long", 0, 40, 300, at=0.5)
    return w, [w.ask("other", 1, 40, 30, at=2.0037), w.ask("same", 0, 40, 30, at=2.5037)]


def test_a_newcomer_waits_for_a_step_and_its_own_prompt():
    w, newcomers = met()
    w.world.run(20)
    assert w.all_finished()
    assert shortened(w) == [0, 1, 0, 1]
    assert max(client.times[0] for client in newcomers) < 2 * STEP_S + 0.016
    assert w.world.attainment().token == 1.0


def test_what_was_not_computed_of_an_amended_turn_is_proposed_again_and_its_memory_is_granted_once():
    w, _ = met()
    long = next(iter(c for c in w.world.clients.values() if c.length == 300))
    w.world.run(20)
    assert len(long.times) == 300
    assert not any("tight" in send.reason for _, send in w.sends)
    planned = sum(turn.steps for turn in w.bodies(cmd.Turn) if turn.decode)
    made = sum(c.length - 1 for c in w.world.clients.values())
    assert planned < made + 8 * 8 + 16  # the ends of four answers, and what two newcomers cut off


def test_a_turn_that_is_due_before_the_newcomer_keeps_its_steps():
    w = Watched([Role.UNIFIED], c=0.09, slabs=250)  # a step takes as long as its reader waits for a token
    w.ask("warm", 1, 40, 2, at=0.1)
    w.ask("long", 0, 40, 30, at=0.5)
    w.ask("other", 1, 40, 4, at=2.0037)
    w.world.run(30)
    assert w.all_finished()
    assert not shortened(w)


def test_the_paper_amends_no_turn():
    w, _ = met("paper")
    w.world.run(20)
    assert w.all_finished()
    assert not shortened(w)


@pytest.mark.parametrize("together", [2, 5])
def test_several_newcomers_of_one_moment_are_all_served_and_nothing_comes_late(together: int):
    w, _ = met()
    for i in range(together):
        w.ask(f"more{i}", i % 2, 40, 20, at=3.0037)
    w.world.run(20)
    assert w.all_finished()
    assert w.world.attainment().token == 1.0


class Cuts:
    """Observes one engine: was a turn cut short although some of it is due before the prompt that comes for it?"""

    def __init__(self) -> None:
        self.world: World | None = None
        self.cuts = 0
        self.wrong: list[str] = []

    def __call__(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        if self.world is None:
            return
        pool = self.world.scheduler._pool
        for command in commands:
            if isinstance(command, cmd.Send) and isinstance(command.body, cmd.Amend) and command.body.steps is not None:
                inst, comer = pool.instances[command.instance], command.reason.split()[0]
                here = [s for s in inst.sequences.values() if s.model.name == comer and s.stage is not Stage.DECODE]
                self.cuts += 1
                self._look(inst, inst.commands[command.body.turn], min(s.deadline() for s in here), now)

    def _look(self, inst: Instance, turn: Issued, prompt_due: float, now: float) -> None:
        """Nothing that is on the lane counts here: tokens are due as if none of it were computed. But for one step: a
        sequence that joined the turn as it ran may begin one later than is known."""
        if min(seq.deadline() for seq in turn.members.values()) + TBT_S <= prompt_due:
            self.wrong.append(f"{now:.3f} some of {turn.model.name} is due before the prompt")
        if any(seq.deadline() < now for seq in inst.sequences.values()):
            self.wrong.append(f"{now:.3f} something here is late")


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([4, 9]))
def test_a_turn_is_cut_short_only_where_all_of_it_is_due_after_the_prompt_and_nothing_is_late(seed, models):
    rng, seen = Random(seed), Cuts()
    latency = LatencyConstants(load_bytes_per_s=(100 << 20) / 0.2, kv_bytes_per_s=4e9)
    config = SchedulerConfig(latency=latency, hold_s=1e9, refine=False)
    world = seen.world = small_world([Role.UNIFIED], models=models, slabs=2400, config=config, observe=seen)
    for i in range(60):
        name, size = ModelName(f"m{rng.randrange(models)}"), rng.choice([20, 400, 1500])
        world.request(f"r{i}", name, size, rng.randrange(5, 150), rng.uniform(0.1, 10.0))
    world.run(100)
    assert all(client.finished for client in world.clients.values())
    assert seen.cuts
    assert not seen.wrong
