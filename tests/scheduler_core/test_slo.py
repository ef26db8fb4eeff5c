"""The three forms of attainment on hand-made requests."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import attainment, time_attained, tokens_on_time

SLO = Slo(1.0, 0.1)


def test_a_token_on_its_deadline_is_on_time():
    assert tokens_on_time([1.0, 1.1, 1.2001], SLO) == 2


def test_a_request_never_served_counts_zero_in_all_three_forms():
    a = attainment([([], SLO, 10), ([0.5] * 10, SLO, 10)])
    assert (a.token, a.request, a.time) == (0.5, 0.5, 0.5)


def test_the_time_form_restarts_its_clock_after_a_miss():
    times = [0.5, 0.6, 5.0, 5.05]
    # on time until 0.6 with an allowance of 1.1; the gap to 5.0 breaks it; then 0.05 s are covered
    assert time_attained(times, SLO) == pytest.approx((1.1 + 0.05) / 5.05)


def test_tokens_pool_over_requests_while_requests_are_averaged():
    a = attainment([([0.1], SLO, 1), ([9.0] * 3, SLO, 3)])
    assert a.token == pytest.approx(0.25)
    assert a.request == pytest.approx(0.5)


def test_tokens_that_never_came_are_late():
    assert attainment([([0.1, 0.2], SLO, 4)]).token == pytest.approx(0.5)


@pytest.mark.parametrize(("times_slower", "tokens", "time"), [(2, 0.31, 0.99), (8, 0.05, 0.98)])
def test_the_time_form_hardly_tells_how_slow_a_stream_is(times_slower: int, tokens: float, time: float) -> None:
    slo = Slo(2.0, 0.02)
    a = attainment([([0.5 + times_slower * slo.tbt_s * k for k in range(250)], slo, 250)])
    assert a.token <= tokens
    assert a.time >= time


def test_the_time_form_charges_one_long_wait() -> None:
    slo = Slo(2.0, 0.02)
    a = attainment([([8.0 + 0.8 * slo.tbt_s * k for k in range(250)], slo, 250)])
    assert a.time == pytest.approx(1.0 / 3.0, abs=0.01)
