"""Turn lengths by Eq. 2-3, the worked example, and the guards that the paper's text leaves open."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_scheduler.core.config import PaperSettings
from aegaeon_scheduler.core.policies.paper import quotas
from aegaeon_scheduler.core.policies.paper.quota import steps_of

seconds = st.floats(1e-4, 0.5)


def test_the_worked_example_gives_three_seconds_and_120_tokens_in_a_round_of_12_seconds():
    lengths = quotas([0.025] * 3, [0.1] * 3, switch_s=3.0, q_max_s=3.0, alpha_floor=0.5)
    assert lengths == pytest.approx([3.0, 3.0, 3.0])
    assert [steps_of(q, 0.025, 1000) for q in lengths] == [120, 120, 120]
    assert sum(lengths) + 3.0 == pytest.approx(12.0)
    assert pytest.approx(12.0) == 120 * 0.1  # the reader consumes exactly what a round produces


def test_without_switches_the_quota_is_zero_and_a_step_still_runs():
    assert quotas([0.01, 0.02], [0.1, 0.1], 0.0, 4.0, 0.5) == [0.0, 0.0]
    assert steps_of(0.0, 0.01, 256) == 1


def test_a_single_batch_has_the_longest_turn_and_it_is_bounded():
    assert quotas([0.01], [0.1], 0.5, 4.0, 0.5) == [4.0]
    assert steps_of(4.0, 1e-9, 256) == 256


def test_the_alpha_floor_shortens_turns_when_few_batches_run():
    short = quotas([0.01] * 2, [0.1] * 2, 0.2, 4.0, 0.5)
    assert short == pytest.approx([0.2 / (10 * (0.5 - 0.2))] * 2)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=12), st.floats(1e-6, 30.0), st.floats(0.1, 8.0))
def test_quotas_are_positive_and_never_above_q_max(batches, switch_s, q_max_s):
    lengths = quotas([t for t, _ in batches], [d for _, d in batches], switch_s, q_max_s, 0.5)
    assert all(0.0 < q <= q_max_s * (1 + 1e-9) for q in lengths)


@given(st.lists(st.tuples(seconds, seconds), min_size=2, max_size=12), st.floats(1e-3, 30.0))
def test_tighter_deadlines_and_slower_steps_get_longer_turns(batches, switch_s):
    n = [d / t for t, d in batches]
    lengths = quotas([t for t, _ in batches], [d for _, d in batches], switch_s, 1e9, 0.5)
    order = sorted(range(len(n)), key=lambda i: n[i])
    for a, b in pairwise(order):
        assert lengths[a] >= lengths[b] * (1 - 1e-9)


@pytest.mark.parametrize("step_s", [0.002, 0.00838, 0.01278])
def test_the_limit_of_steps_lets_a_turn_last_for_q_max(step_s):
    settings = PaperSettings()
    steps = steps_of(settings.q_max_s, step_s, settings.max_turn_steps)
    assert steps * step_s == pytest.approx(settings.q_max_s, rel=0.01)
