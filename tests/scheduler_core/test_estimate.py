"""Constants are refined from reports until they predict them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_scheduler.core.config import ConstantsOf, LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.estimate import Estimate, Estimates
from aegaeon_simulator.devices import read_device

TRUE = LatencyConstants(a=8e-3, b=9e-8, c=1e-4, p0=7e-3, p1=2e-5, p2=3e-10, floor=0.0)
WRONG = LatencyConstants(a=3e-2, b=0.0, c=0.0, p0=1e-3, p1=1e-4, p2=0.0)


def test_step_times_converge_within_two_percent_from_wrong_constants():
    estimate, rng = Estimate(WRONG), random.Random(1)
    for _ in range(3000):
        batch, context = rng.randint(1, 32), rng.randint(100, 40_000)
        estimate.saw_steps(context, batch, (TRUE.a + TRUE.b * context + TRUE.c * batch) * rng.uniform(0.98, 1.02))
    for batch, context in ((1, 500), (8, 8_000), (32, 40_000)):
        assert estimate.step_s(context, batch) == pytest.approx(TRUE.a + TRUE.b * context + TRUE.c * batch, rel=0.02)
    assert estimate.quality()[0] > 0.9


def test_prefill_times_converge_too():
    estimate, rng = Estimate(WRONG), random.Random(2)
    for _ in range(300):
        t = rng.randint(1, 4000)
        estimate.saw_prefill(t, TRUE.p0 + TRUE.p1 * t + TRUE.p2 * t * t)
    assert estimate.prefill_s(2000) == pytest.approx(TRUE.p0 + TRUE.p1 * 2000 + TRUE.p2 * 4e6, rel=0.02)


def test_short_prompts_cost_the_minimum():
    estimate = Estimate(LatencyConstants(p0=1e-3, p1=1e-6, p2=0.0, floor=0.02))
    assert estimate.prefill_s(1) == 0.02


def test_a_batch_that_never_changes_does_not_spoil_the_fit():
    estimate = Estimate(TRUE)
    for _ in range(20_000):
        estimate.saw_steps(1000, 4, 0.01)
    estimate.saw_steps(30_000, 16, 0.0123)
    assert 0.0 < estimate.step_s(5_000, 8) < 0.1


def test_the_first_load_replaces_the_guess():
    estimate = Estimate(LatencyConstants(load_bytes_per_s=1e12))
    estimate.saw_load(10**9, 0.5)
    assert estimate.load_s(2 * 10**9) == pytest.approx(1.0)


def test_the_closest_constants_are_used():
    given_ = (
        ConstantsOf("m", "gpu", LatencyConstants(a=1.0)),
        ConstantsOf("m", "", LatencyConstants(a=2.0)),
        ConstantsOf("", "gpu", LatencyConstants(a=3.0)),
    )
    estimates = Estimates(SchedulerConfig(constants=given_))
    for model, device, a in (("m", "gpu", 1.0), ("m", "cpu", 2.0), ("x", "gpu", 3.0)):
        assert estimates.of(ModelName(model), device).constants().a == a


def step_s(batch: int, context: int, times: float = 1.0) -> float:
    return times * (TRUE.a + TRUE.b * context + TRUE.c * batch)


sizes = st.tuples(st.integers(1, 32), st.integers(100, 40_000))
outliers = st.one_of(st.floats(0.2, 600.0), st.floats(0.0, 1e-4))  # seconds, where a step takes about 0.01


@given(st.lists(sizes, min_size=3, max_size=30), sizes, outliers)
def test_an_outlier_changes_nothing(before: list[tuple[int, int]], at: tuple[int, int], seconds: float):
    estimate = Estimate(TRUE)
    for batch, context in before:
        estimate.saw_steps(context, batch, step_s(batch, context, 1.5))
    predicted = [estimate.step_s(context, batch) for batch, context in [*before, at]]
    estimate.saw_steps(at[1], at[0], seconds)
    assert [estimate.step_s(context, batch) for batch, context in [*before, at]] == predicted


@given(sizes, st.floats(0.0, 600.0))
def test_no_single_report_changes_an_estimate_by_more_than_it_may_be_off(at: tuple[int, int], seconds: float):
    estimate = Estimate(TRUE)
    estimate.saw_steps(at[1], at[0], seconds)
    for batch, context in (at, (1, 100), (32, 40_000)):
        assert 1 / 3.3 < estimate.step_s(context, batch) / step_s(batch, context) < 3.3


@pytest.mark.parametrize("before", [0, 3, 24, 60, 2000])
@pytest.mark.parametrize("wrong", [(2.0,), (2.0, 30.0), (1e-5, 2.0)])
def test_after_outliers_twenty_reports_of_the_truth_are_believed(before: int, wrong: tuple[float, ...]):
    estimate, rng = Estimate(TRUE), random.Random(before)
    for _ in range(before):
        context = rng.randint(100, 9000)
        estimate.saw_steps(context, 4, step_s(4, context))
    for seconds in wrong:
        estimate.saw_steps(1000, 2, seconds)
    reports = [(rng.randint(1, 32), rng.randint(100, 40_000)) for _ in range(20)]
    for batch, context in reports:
        estimate.saw_steps(context, batch, step_s(batch, context))
    for batch, context in reports:
        assert estimate.step_s(context, batch) == pytest.approx(step_s(batch, context), rel=0.1)


@pytest.mark.parametrize("times", [0.25, 0.7, 1.3, 2.5, 8.0])
@pytest.mark.parametrize("before", [0, 3, 24, 60, 2000])
def test_twenty_reports_show_that_a_device_has_another_speed_at_the_sizes_that_it_computes(times: float, before: int):
    estimate, rng = Estimate(TRUE), random.Random(before)
    for i in range(before + 20):
        context = rng.randint(100, 9000)
        estimate.saw_steps(context, 4, step_s(4, context, times if i >= before else 1.0))
    for context in (500, 2000, 8000):
        assert estimate.step_s(context, 4) == pytest.approx(step_s(4, context, times), rel=0.1)


def test_a_slow_copy_or_load_among_others_changes_nothing():
    estimate = Estimate(TRUE)
    for seconds in (1.0, 1.0, 30.0, 1.0, 1.0):
        estimate.saw_load(10**10, seconds)
        estimate.saw_kv(10**9, seconds / 10)
    assert estimate.load_s(10**10) == pytest.approx(1.0)
    assert estimate.kv_s(10**9) == pytest.approx(0.1)


@pytest.mark.parametrize("device", ["a10", "h800-policy", "h800-harsh", "h800-tp4"])
@pytest.mark.parametrize("longest", [1000, 2000])
def test_a_prompt_of_32k_is_estimated_within_a_factor_of_two_from_short_ones(device: str, longest: int):
    for kind in read_device(device).kinds.values():
        true, estimate, rng = kind.latency, Estimate(LatencyConstants()), random.Random(longest)
        for _ in range(200):
            t = rng.randint(50, longest)
            seconds = max(true.floor, true.p0 + true.p1 * t + true.p2 * t * t)
            estimate.saw_prefill(t, seconds * rng.uniform(0.9, 1.1))
        assert 0.5 < estimate.prefill_s(32_000) / (true.p0 + true.p1 * 32e3 + true.p2 * 32e3**2) < 2.0


def test_parts_of_prompts_teach_what_whole_ones_take():
    estimate = Estimate(WRONG)
    for _ in range(200):
        for done in range(0, 32_000, 2000):
            squares = (done + 2000) ** 2 - done**2
            estimate.saw_prefill(2000, TRUE.p0 * (done == 0) + TRUE.p1 * 2000 + TRUE.p2 * squares, done)
    assert estimate.prefill_s(32_000) == pytest.approx(TRUE.p0 + TRUE.p1 * 32e3 + TRUE.p2 * 32e3**2, rel=0.03)


@pytest.mark.parametrize("done", [0, 4000, 90_000])
@pytest.mark.parametrize("seconds", [0.025, 0.1])
def test_a_part_takes_the_time_that_it_is_given(done: int, seconds: float):
    estimate = Estimate(TRUE)
    assert estimate.part_s(done, estimate.part_tokens(done, seconds)) == pytest.approx(seconds, rel=0.1)


def test_first_uses_are_known_apart_and_teach_nothing_of_steps():
    estimate = Estimate(TRUE)
    for seconds in (0.4, 9.0, 0.5):
        estimate.saw_first(seconds, prefill=False)
    estimate.saw_first(0.1, prefill=True)
    assert estimate.first_s == pytest.approx(0.6)
    assert estimate.step_s(0, 1) == Estimate(TRUE).step_s(0, 1)
