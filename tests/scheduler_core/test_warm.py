"""The warm set: models that will probably be asked for are loaded ahead, and nothing else waits for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_core.test_slack import Watched

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.policies.slack import policy, weights
from aegaeon_scheduler.core.policies.slack.weights import Asked

HOUR_S = 3600.0
WARM = {"warm": True}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of the warm set begin ten times a second."""
    for module in (policy, weights):
        monkeypatch.setattr(module, "WARM_GAP_S", 0.1)


def loads(w: Watched) -> list[str]:
    return [body.model for body in w.bodies(cmd.Load)]


def asked_often(w: Watched, model: int, until: float, every: float = 0.5) -> None:
    for i in range(int(until / every)):
        w.ask(f"keep{model}-{i}", model, 50, 5, at=0.1 + i * every)


def test_free_memory_is_filled_with_models_that_were_never_asked_for():
    w = Watched([Role.UNIFIED], WARM, slabs=450, models=6)
    asked_often(w, 0, 5.0)
    w.world.run(20)
    assert w.all_finished()
    assert len(set(loads(w))) == len(loads(w)) == 4
    assert not w.bodies(cmd.Unload)


def test_nothing_is_loaded_ahead_unless_it_is_switched_on():
    w = Watched([Role.UNIFIED], slabs=450, models=6)
    asked_often(w, 0, 5.0)
    w.world.run(20)
    assert loads(w) == ["m0"]


@pytest.mark.parametrize("warm", [False, True])
def test_a_model_that_others_pushed_out_is_back_before_it_is_asked_for_again(warm):
    """Room for two: m1 is asked for often, then m2, m3 and m4 once each, then m1 again."""
    w = Watched([Role.UNIFIED], {"warm": warm}, slabs=250, models=5)
    asked_often(w, 0, 20.0)
    asked_often(w, 1, 8.0)
    for i in (2, 3, 4):
        w.ask(f"once{i}", i, 50, 5, at=9.0 + i)
    again = w.ask("again", 1, 50, 5, at=18.0)
    w.world.run(60)
    assert w.all_finished()
    assert w.world.attainment().token == 1.0
    assert (again.times[0] < 0.15) == warm  # its load takes 0.2 s


def test_no_load_begins_for_it_while_a_group_waits_for_an_engine():
    w = Watched([Role.UNIFIED], WARM, slabs=130, models=8)
    for i in range(40):
        w.ask(f"r{i}", i % 3, 50, 60, at=0.1)
    w.world.run(60)
    assert w.all_finished()
    last = max(client.arrival + client.times[-1] for client in w.world.clients.values())
    early = {s.body.model for at, s in w.sends if isinstance(s.body, cmd.Load) and at < last - 1.0}
    assert early == {"m0", "m1", "m2"}


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 8.0), st.integers(0, 5), st.integers(5, 60)), min_size=1, max_size=30),
    st.sampled_from([130, 250, 450]),
)
def test_whatever_is_asked_for_all_of_it_ends_and_the_books_are_right(requests, slabs):
    w = Watched([Role.UNIFIED, Role.UNIFIED], WARM, slabs=slabs, models=6)
    for i, (at, model, length) in enumerate(requests):
        w.ask(f"r{i}", model, 50, length, at=at)
    w.world.run(150)
    assert w.all_finished()


def test_a_rate_that_doubled_shows_at_once_and_fades():
    asked = Asked()
    for i in range(120):
        asked.count(60.0 * i)
    calm = asked.rate(7200.0)
    for i in range(10):
        asked.count(7200.0 + i)
    assert asked.rate(7210.0) > 2 * calm
    assert asked.rate(7210.0 + 600.0) < 2 * calm


def test_a_model_that_is_asked_for_at_one_hour_of_the_day_is_expected_then():
    counts = Asked()
    for day in range(3):
        for i in range(60):
            counts.count((24 * day + 9) * HOUR_S + 60.0 * i)
    night, morning = (24 * 3 + 3) * HOUR_S, (24 * 3 + 9) * HOUR_S
    assert counts.rate(night) < 1e-4
    assert counts.rate(morning - 200.0) > 0.01
