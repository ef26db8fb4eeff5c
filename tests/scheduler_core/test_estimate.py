"""Constants are refined from reports until they predict them."""

from __future__ import annotations

import random

import pytest

from aegaeon_scheduler.core.config import ConstantsOf, LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.estimate import Estimate, Estimates

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


def test_an_outlier_changes_nothing_and_a_lasting_change_is_believed():
    estimate = Estimate(TRUE)
    true_s = estimate.step_s(1000, 4)
    for i in range(20):
        estimate.saw_steps(1000, 4, 2.0 if i in (0, 7, 12) else true_s)
    assert estimate.step_s(1000, 4) == pytest.approx(true_s, rel=0.02)
    for _ in range(40):
        estimate.saw_steps(1000, 4, 10 * true_s)
    assert estimate.step_s(1000, 4) > 5 * true_s


def test_a_slow_copy_or_load_among_others_changes_nothing():
    estimate = Estimate(TRUE)
    for seconds in (1.0, 1.0, 30.0, 1.0, 1.0):
        estimate.saw_load(10**10, seconds)
        estimate.saw_kv(10**9, seconds / 10)
    assert estimate.load_s(10**10) == pytest.approx(1.0)
    assert estimate.kv_s(10**9) == pytest.approx(0.1)


@pytest.mark.parametrize("seed", range(20))
def test_a_prompt_longer_than_any_before_takes_about_what_the_shape_of_the_constants_says(seed: int):
    estimate, rng = Estimate(TRUE), random.Random(seed)
    for _ in range(200):
        t = rng.randint(50, 2000)
        estimate.saw_prefill(t, (TRUE.p0 + TRUE.p1 * t + TRUE.p2 * t * t) * rng.uniform(0.9, 1.1))
    assert estimate.prefill_s(32_000) == pytest.approx(TRUE.p0 + TRUE.p1 * 32e3 + TRUE.p2 * 32e3**2, rel=0.1)


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
