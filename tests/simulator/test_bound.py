"""The bound on tokens on time is what work and deadlines leave, and no policy exceeds it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.bound import most_on_time
from simulator.runs import arrivals, plain_device

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Workload

SLO = Slo(10.0, 0.1)


def run_of(prompt_s: float, times: list[float], length: int) -> Run:
    device = plain_device(step_s=0.0, prefill_s=prompt_s)
    device = replace(device, model_bytes=20 * 10**9)
    return Run(Settings("slack", Split(unified=1), SLO), Workload(("plain",), tuple(arrivals(times, length))), device)


@pytest.mark.parametrize(
    ("prompt_s", "times", "bound"),
    [(2.5, [0.0] * 4, 1.0), (5.0, [0.0] * 4, 0.5), (5.0, [0.0, 0.0, 10.0, 20.0], 1.0), (20.0, [0.0] * 4, 0.125)],
)
def test_work_that_is_due_by_a_moment_bounds_the_tokens_on_time(prompt_s: float, times: list[float], bound: float):
    run = run_of(prompt_s, times, 1)
    assert most_on_time(run, 1, SLO) == pytest.approx(bound)
    assert simulate(run).attainment(SLO).token <= bound + 1e-9
