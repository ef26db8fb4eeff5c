"""Moore and Hodgson, and placement by KV pressure: held against trying everything out."""

from __future__ import annotations

from itertools import combinations
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from aegaeon_scheduler.core.policies.prism.arbitration import Job, moore_hodgson
from aegaeon_scheduler.core.policies.prism.pressure import Demand, Share, balance, least

jobs = st.lists(
    st.builds(lambda due, takes: Job("", due / 8, takes / 8), st.integers(0, 60), st.integers(1, 24)), max_size=9
)


def in_time(jobs: list[Job[str]], now: float) -> bool:
    for job in sorted(jobs, key=lambda job: job.deadline):
        now += job.seconds
        if now > job.deadline:
            return False
    return True


@given(jobs, st.integers(0, 8).map(float))
def test_no_choice_of_prompts_has_more_in_time(jobs, now):
    kept, dropped = moore_hodgson(jobs, now)
    assert in_time(kept, now)
    assert sorted([*kept, *dropped]) == sorted(jobs)
    assert not any(in_time(list(more), now) for more in combinations(jobs, len(kept) + 1))


@given(jobs)
def test_both_parts_are_in_the_order_of_their_deadlines(jobs):
    for part in moore_hodgson(jobs, 0.0):
        assert [job.deadline for job in part] == sorted(job.deadline for job in part)


def test_the_longest_prompt_stands_back_for_two_short_ones():
    long, a, b = Job("long", 3.0, 2.5), Job("a", 3.5, 1.0), Job("b", 4.0, 1.0)
    kept, dropped = moore_hodgson([b, long, a], 0.0)
    assert [job.what for job in kept] == ["a", "b"]
    assert dropped == [long]


PLACES = ("g0", "g1", "g2")
MEMORY = {"g0": 80, "g1": 80, "g2": 40}
demands = st.dictionaries(
    st.integers(0, 9),
    st.builds(
        Demand,
        st.integers(0, 50).map(float),
        st.integers(5, 30),
        st.sets(st.sampled_from(PLACES), min_size=1).map(lambda able: tuple(sorted(able))),
        st.sampled_from(PLACES),
    ),
    max_size=7,
)


def one_by_one(models, moved):
    """Each model in the order in which they are placed, and the ratios of all instances with it just before."""
    shares = {place: Share(nbytes) for place, nbytes in MEMORY.items()}
    for key in sorted(models, key=lambda key: -models[key].growth):
        need = models[key]
        yield key, need, {place: share.ratio(need.growth, need.weight_bytes) for place, share in shares.items()}
        shares[moved.get(key, need.at)].add(need.growth, need.weight_bytes)


@given(demands)
def test_a_model_moves_only_where_it_may_and_where_memory_for_kv_is_left(models):
    moved = balance(models, MEMORY, 0.35)
    for key, place in moved.items():
        assert place in models[key].able
        assert place != models[key].at
    for key, need, before in one_by_one(models, moved):
        place = moved.get(key, need.at)
        best = min((before[able] for able in need.able), default=inf)
        if key in moved:
            assert before[place] == best
            assert best < inf
            assert before[need.at] > 1.35 * best
        elif need.growth:
            assert before[place] <= 1.35 * best


@given(demands)
def test_without_a_threshold_that_can_be_met_nothing_moves_but_off_full_instances(models):
    """Also off one that is full of what has moved there just before."""
    moved = balance(models, MEMORY, 1e18)
    assert all(before[need.at] == inf for key, need, before in one_by_one(models, moved) if key in moved)


def test_two_busy_models_are_parted_and_idle_ones_stay():
    models = {
        "busy": Demand(10.0, 10, PLACES, "g0"),
        "other": Demand(9.0, 10, PLACES, "g0"),
        "idle": Demand(0.0, 10, PLACES, "g0"),
    }
    assert balance(models, MEMORY, 0.35) == {"other": "g1"}


def test_where_all_are_full_there_is_no_least_pressure():
    assert least({"g0": Share(10), "g1": Share(5)}, ["g0", "g1"], 1.0, 10) is None
