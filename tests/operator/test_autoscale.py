"""The autoscaler in virtual time: out under load, in when idle, never past its bounds, never in a flutter."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from aegaeon_operator.reconcile.cluster.autoscale import Load, Memory, step
from aegaeon_operator.spec.kubernetes import Autoscaling

KNOBS = Autoscaling()
IDLE = Load(desired=2, attached=2, oldest_wait_s=0.0, kv_used=0.0, sequences=0)


def run(load: Load, seconds: int, memory: Memory | None = None, low: int = 1, high: int = 3) -> list[int]:
    """The engines at every second while the load stays as it is and engines come up at once."""
    memory, desired, engines = memory or Memory(), load.desired, []
    for now in range(seconds):
        current = Load(desired, desired, load.oldest_wait_s, load.kv_used, load.sequences)
        desired, memory = step(current, low, high, KNOBS, memory, float(now))
        engines.append(desired)
    return engines


def test_requests_that_wait_ten_seconds_bring_engines_up_to_the_bound() -> None:
    assert run(Load(1, 1, 9.9, 0.0, 5), 5) == [1, 1, 1, 1, 1]
    assert run(Load(1, 1, 10.0, 0.0, 5), 5) == [2, 3, 3, 3, 3]


def test_no_further_engine_is_asked_for_while_one_comes_up() -> None:
    assert step(Load(2, 1, 60.0, 0.0, 5), 1, 5, KNOBS, Memory(), 0.0)[0] == 2


def test_full_memory_adds_an_engine_after_half_a_minute_and_not_before() -> None:
    desired = run(Load(1, 1, 0.0, 0.95, 5), 40)
    assert desired[:30] == [1] * 30
    assert desired[30] == 2


def test_idle_engines_are_removed_one_by_one_five_minutes_apart() -> None:
    desired = run(Load(3, 3, 0.0, 0.0, 0), 700)
    assert (desired[299], desired[300], desired[599], desired[600], desired[-1]) == (3, 2, 2, 1, 1)


def test_one_request_restarts_the_wait() -> None:
    _, memory = step(IDLE, 1, 3, KNOBS, Memory(), 0.0)
    _, memory = step(Load(2, 2, 0.0, 0.0, 2), 1, 3, KNOBS, memory, 299.0)
    assert step(IDLE, 1, 3, KNOBS, memory, 300.0)[0] == 2


def test_the_first_request_at_zero_adds_one_engine_at_once() -> None:
    none = Load(0, 0, 0.0, 0.0, 0)
    assert step(none, 0, 3, KNOBS, Memory(), 0.0)[0] == 0
    assert step(replace(none, open_requests=9, oldest_wait_s=60.0), 0, 3, KNOBS, Memory(), 0.0)[0] == 1


def test_a_new_engine_gets_time_to_serve_the_queue() -> None:
    memory, desired = Memory(), 0
    found = []
    for now in range(80):  # it attaches after a minute, and nothing is taken yet
        load = Load(desired, 1 if now >= 60 else 0, float(now), 0.0, 0, open_requests=1)
        desired, memory = step(load, 0, 3, KNOBS, memory, float(now))
        found.append(desired)
    assert (found[0], found[69], found[70], found[-1]) == (1, 1, 2, 2)


def test_the_last_engine_is_removed_after_a_long_idle_time_and_not_between_short_requests() -> None:
    last = Load(1, 1, 0.0, 0.0, 0, ended=7)
    memory = step(last, 0, 3, KNOBS, Memory(ended=7), 0.0)[1]
    assert step(last, 0, 3, KNOBS, memory, 299.0)[0] == 1
    assert step(last, 0, 3, KNOBS, memory, 300.0)[0] == 0
    desired, memory = step(replace(last, ended=8), 0, 3, KNOBS, memory, 300.0)
    assert (desired, step(replace(last, ended=8), 0, 3, KNOBS, memory, 599.0)[0]) == (1, 1)


def test_the_last_engine_of_a_role_stays_while_the_other_role_works() -> None:
    prefill = Load(1, 1, 0.0, 0.0, 0, open_requests=1)
    memory = step(prefill, 0, 1, KNOBS, Memory(), 0.0)[1]
    assert step(prefill, 0, 1, KNOBS, memory, 900.0)[0] == 1


@given(
    st.lists(
        st.tuples(st.floats(0, 60), st.floats(0, 1), st.integers(0, 50), st.integers(0, 9), st.floats(0.1, 400)),
        max_size=30,
    ),
    st.integers(0, 4),
    st.integers(1, 4),
)
def test_it_stays_within_its_bounds_and_moves_by_one(
    looks: list[tuple[float, float, int, int, float]], low: int, more: int
) -> None:
    memory, desired, now = Memory(), low, 0.0
    for wait, kv, sequences, attached, passed in looks:
        now += passed
        wanted, memory = step(
            Load(desired, attached, wait, kv, sequences, sequences), low, low + more, KNOBS, memory, now
        )
        assert low <= wanted <= low + more
        assert abs(wanted - desired) <= 1
        desired = wanted
