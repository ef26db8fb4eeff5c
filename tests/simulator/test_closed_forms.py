"""What is known in closed form comes out of the simulator: Theorem 3.1, M/D/1, batching arithmetic, the quotas."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from statistics import mean

import numpy as np
import pytest
from simulator.runs import LOAD_S, arrivals, plain_device, run

from aegaeon_scheduler.core.policies.paper.quota import quotas, steps_of
from aegaeon_simulator.results.outcome import Served
from aegaeon_simulator.settings import PRODUCTION, Split
from aegaeon_simulator.workload import Workload
from aegaeon_simulator.workload.model import in_order


def _poisson_times(rate: float, until_s: float, seed: int) -> list[float]:
    random = np.random.default_rng(seed)
    gaps = random.exponential(1 / rate, size=int(rate * until_s * 2) + 20)
    return [float(t) for t in np.cumsum(gaps) if t < until_s]


def _seconds_with_work(requests: list[Served], start: float, end: float) -> float:
    """Length of the union of the requests' lives."""
    spans = sorted((r.arrival_s, r.arrival_s + r.times[-1]) for r in requests)
    total, reached = 0.0, start
    for begin, over in spans:
        total += max(0.0, min(over, end) - max(begin, reached))
        reached = max(reached, min(over, end))
    return total


def test_theorem_3_1_expects_as_many_active_models_as_a_pool_has() -> None:
    models, rate, service_s, steps = 100, 0.037, 16.79, 60
    start, end = 60.0, 1200.0
    work = [a for m in range(models) for a in arrivals(_poisson_times(rate, end, m), steps, m)]
    device = plain_device(step_s=service_s / (steps - 1), prefill_s=1e-6)
    workload = in_order(("plain",) * models, work)
    outcome = run("dedicated", workload, device, split=Split(unified=models))
    by_model: list[list[Served]] = [[] for _ in range(models)]
    for request in outcome.requests:
        by_model[request.model].append(request)
    active = sum(_seconds_with_work(requests, start, end) for requests in by_model) / (end - start)
    assert models * (1 - exp(-rate * service_s)) == pytest.approx(46.27, abs=0.01)
    assert active == pytest.approx(46.27, rel=0.03)


@pytest.mark.parametrize("policy", ["dedicated", "serverlessllm-fair", "paper", "slack"])
@pytest.mark.parametrize("load", [0.5, 0.7])
def test_prompts_on_one_device_wait_as_in_an_m_d_1_queue(policy: str, load: float) -> None:
    service_s = 0.1
    times = _poisson_times(load / service_s, 1500.0, 7)
    device = plain_device(step_s=0.01, prefill_s=service_s)
    outcome = run(policy, Workload(("plain",), tuple(arrivals(times, 1))), device)
    waits = [r.times[0] - service_s for r in outcome.requests[100:]]
    assert mean(waits) == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.1)


@pytest.mark.parametrize("policy", ["slack", "paper", "dedicated", "serverlessllm-fair"])
@pytest.mark.parametrize("batch", [1, 4])
def test_one_model_alone_takes_what_batching_arithmetic_says(policy: str, batch: int) -> None:
    step_s, per_request_s, prefill_s, length = 0.01, 0.001, 0.05, 101
    device = plain_device(step_s=step_s, per_request_s=per_request_s, prefill_s=prefill_s)
    workload = Workload(("plain",), tuple(arrivals([0.0] * batch, length)))
    outcome = run(policy, workload, device)
    load_s = 0.0 if policy == "dedicated" else LOAD_S
    expected = load_s + batch * prefill_s + (length - 1) * (step_s + per_request_s * batch)
    # The core commands one turn ahead: the first may take a step alone, while the other prompts wait for theirs.
    ahead_s = step_s + per_request_s if policy in PRODUCTION and batch > 1 else 0.0
    assert expected - 1e-6 <= max(r.times[-1] for r in outcome.requests) <= expected + ahead_s + 1e-6
    assert min(r.times[0] for r in outcome.requests) == pytest.approx(load_s + prefill_s, abs=1e-6)


def test_the_quota_example_decodes_120_tokens_in_rounds_of_12_seconds() -> None:
    step_s, switch_s = [0.025] * 3, 3.0
    turns = quotas(step_s, [0.1] * 3, switch_s, 3.0, 0.5)
    assert turns == pytest.approx([3.0] * 3)
    assert [steps_of(q, t, 1000) for q, t in zip(turns, step_s, strict=True)] == [120] * 3
    assert sum(turns) + switch_s == pytest.approx(12.0)


def test_a_first_decode_step_of_a_model_is_charged_once_on_each_device() -> None:
    device = replace(plain_device(step_s=0.01, prefill_s=0.1), first_s=0.5)
    work = in_order(("plain", "plain"), [*arrivals([1.0, 5.0], 3, 0), *arrivals([9.0], 3, 1)])
    outcome = run("slack", work, device)
    gaps = [r.times[1] - r.times[0] for r in sorted(outcome.requests, key=lambda r: r.arrival_s)]
    assert gaps == pytest.approx([0.51, 0.01, 0.51], abs=2e-3)
    assert [u.first_s for u in outcome.usage] == [1.0]
    assert sum(u.decode_s for u in outcome.usage) == pytest.approx(0.06)
