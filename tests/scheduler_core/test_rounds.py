"""Groups of an engine that are all far ahead of their readers take turns with each other: none stalls."""

from __future__ import annotations

import itertools

import pytest
from scheduler_core.test_slack import Watched
from small_world import interpreted

from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.policies.slack.turns import Turns

TURN_S = 8 * 0.011  # of two sequences, about
PROMPT_S = 0.016


def longest_pause(client) -> float:
    return max(b - a for a, b in itertools.pairwise(client.times))


def met(**options) -> tuple[Watched, list]:
    """A long answer of m0, and chats of m1 beside it, one after the other: each begins with less slack than m0 has."""
    w = Watched([Role.UNIFIED], slabs=250, **options)
    long = w.ask("long", 0, 40, 600, at=0.5)
    chats = [w.ask(f"chat{i}", 1, 40, 60, at=3.0 + 0.7 * i) for i in range(12)]
    return w, [long, *chats]


def test_one_that_is_far_ahead_pauses_for_a_turn_and_prompts_of_others():
    w, clients = met()
    w.world.run(60)
    assert w.all_finished()
    assert w.world.attainment().token == 1.0
    assert max(longest_pause(client) for client in clients) < 2 * (TURN_S + PROMPT_S)


def test_a_prompt_does_not_wait_for_rounds():
    w, clients = met()
    w.world.run(60)
    assert max(client.times[0] for client in clients[2:]) < 3 * PROMPT_S + 0.011  # the first one loads


@interpreted
def test_without_rounds_it_stalls_until_the_others_are_as_far_ahead(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Turns, "_round", lambda *_: (0, 0.0))
    w, (long, *_) = met()
    w.world.run(60)
    assert w.all_finished()
    assert w.world.attainment().token == 1.0
    assert longest_pause(long) > 0.9


@pytest.mark.parametrize("models", [2, 3, 5])
def test_of_several_that_are_far_ahead_each_pauses_for_one_turn_of_every_other(models):
    w = Watched([Role.UNIFIED], slabs=120 * models + 40, models=models)
    clients = [w.ask(f"long{i}", i, 40, 600, at=0.1 + 0.8 * i) for i in range(models)]
    w.world.run(60)
    assert w.all_finished()
    begin, end = 0.8 * models + 1.0, min(c.arrival + c.times[-1] for c in clients)  # all are far ahead, none has ended
    for client in clients:
        times = [at for at in client.times if begin < client.arrival + at < end]
        assert len(times) > 100
        assert max(b - a for a, b in itertools.pairwise(times)) < (models - 1) * TURN_S + 2 * 0.011
