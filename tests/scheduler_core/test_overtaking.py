"""A prompt that comes while others decode ahead of their readers waits for a step of theirs, not for two turns."""

from __future__ import annotations

import pytest
from scheduler_core.test_slack import Watched

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import Role

STEP_S = 0.0101  # of one sequence, about; a prompt takes 0.015


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
