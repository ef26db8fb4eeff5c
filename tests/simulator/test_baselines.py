"""The baselines: token times of the paper's artifact, static placement, one queue for all."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator.runs import LOAD_S, SLO, arrivals, plain_device, run

from aegaeon_simulator.devices import read_device
from aegaeon_simulator.results.report import report
from aegaeon_simulator.settings import Split, default_split
from aegaeon_simulator.workload import Arrival, Workload, read_trace
from aegaeon_simulator.workload.artifact import resampled
from aegaeon_simulator.workload.model import in_order

DATA = Path(__file__).parents[2] / "benchmarks" / "data"


def _artifact(policy: str, rate: str, models: int) -> tuple[float, int]:
    trace = read_trace(DATA / f"ae_synth_80models_rps{rate}.csv").first_models(models)
    outcome = run(policy, trace, read_device("artifact"), split=default_split(policy))
    return outcome.attainment(SLO).time, sum(r.finished for r in outcome.requests)


@pytest.mark.parametrize(
    ("policy", "rate", "models", "time", "finished"),
    [
        ("serverlessllm", "0.5", 18, 0.90632, 469),
        ("serverlessllm-plus", "0.1", 36, 0.96370, 359),
    ],
)
def test_slot_policies_give_what_the_artifacts_own_simulator_gives(
    policy: str, rate: str, models: int, time: float, finished: int
) -> None:
    attained, count = _artifact(policy, rate, models)
    assert attained == pytest.approx(time, abs=1e-5)
    assert count == finished


@pytest.mark.parametrize(("models", "published"), [(48, 99.7), (64, 94.2), (72, 89.3)])
def test_paper_artifact_is_within_two_points_of_the_published_runs(models: int, published: float) -> None:
    assert 100 * _artifact("paper-artifact", "0.1", models)[0] == pytest.approx(published, abs=2.0)


def test_resampling_keeps_times_and_counts_and_draws_from_the_traces_own_pairs() -> None:
    trace = read_trace(DATA / "ae_synth_80models_rps0.1.csv").first_models(20)
    drawn = resampled(trace, {"qwen2_5_7b": 8192, "yi1_5_9b_chat": 4096, "llama2_13b": 4096}, 0)
    assert [a.model for a in drawn.arrivals] == [a.model for a in trace.arrivals]
    assert all(0 <= a.t_s - b.t_s < 0.0011 for a, b in zip(trace.arrivals, drawn.arrivals, strict=True))
    pairs = {(a.input_tokens, a.output_tokens) for a in trace.arrivals}
    kept = [(a.input_tokens, a.output_tokens) in pairs for a in drawn.arrivals]
    assert sum(kept) / len(kept) > 0.8
    first = drawn.arrivals[0].model
    assert drawn.kinds[first] == "qwen2_5_7b"


def _two_models_a_device(models: int) -> Workload:
    work = [a for m in range(models) for a in arrivals([0.1 * m], 20, m)]
    return in_order(("plain",) * models, work)


def test_muxserve_serves_two_models_a_device_and_never_the_rest() -> None:
    device = plain_device(step_s=0.01, prefill_s=0.02)
    outcome = run("muxserve", _two_models_a_device(7), device, split=Split(unified=3))
    figures = report(outcome, lambda model: SLO, [str(m) for m in range(7)], ["plain"] * 7)
    assert figures["requests"] == {"offered": 7, "finished": 6, "unserved": 1, "refused": 0}
    assert figures["attainment"]["token"] == pytest.approx(6 / 7)
    assert figures["models"]["6"]["attainment"] == {"token": 0.0, "request": 0.0, "time": 0.0}


def test_muxserve_by_memory_takes_as_many_models_as_leave_memory_for_kv() -> None:
    device = plain_device(step_s=0.01, prefill_s=0.02)  # 72 GB less a fifth: five models of 10 GB
    outcome = run("muxserve-memory", _two_models_a_device(7), device)
    assert sum(r.finished for r in outcome.requests) == 5


def test_fair_joins_the_running_batch_and_queues_the_others_in_order() -> None:
    device = plain_device(step_s=0.1, prefill_s=0.1)
    work = (Arrival(0.0, 0, 1, 50), Arrival(1.0, 1, 1, 2), Arrival(2.0, 0, 1, 5))
    outcome = run("serverlessllm-fair", Workload(("plain",) * 2, work), device)
    first, other, joined = outcome.requests
    assert joined.times[-1] < 1.0  # it did not wait for the other model
    assert other.arrival_s + other.times[0] == pytest.approx(first.times[-1] + LOAD_S + 0.1)
    assert len(outcome.usage[0].stalls) == 2


def test_static_models_share_a_device_step_by_step() -> None:
    device = plain_device(step_s=0.01, prefill_s=0.01)
    workload = in_order(("plain",) * 2, [*arrivals([0.0], 11, 0), *arrivals([0.0], 11, 1)])
    outcome = run("muxserve", workload, device)
    assert max(r.times[-1] for r in outcome.requests) == pytest.approx(0.02 + 20 * 0.01)


def test_a_sleeping_model_is_awake_for_a_quarter_of_ttft_while_others_wait_and_computes_its_kv_again() -> None:
    device = plain_device(step_s=0.1, prefill_s=0.1)
    work = (Arrival(0.0, 0, 1, 50), Arrival(1.0, 1, 1, 2))
    outcome = run("vllm-sleep", Workload(("plain",) * 2, work), device)
    first, other = outcome.requests
    over = LOAD_S + SLO.ttft_s / 4
    assert other.arrival_s + other.times[0] == pytest.approx(over + LOAD_S + 0.1, abs=0.11)
    before = sum(t <= over + 0.11 for t in first.times)
    gap = first.times[before] - first.times[before - 1]
    assert gap == pytest.approx(LOAD_S + 0.2 + LOAD_S + 0.1, abs=0.01)  # the other one, and its own prompt once more
    assert len(first.times) == 50
    assert [u.prefill_s for u in outcome.usage] == [pytest.approx(0.3)]


def test_a_model_alone_stays_awake() -> None:
    device = plain_device(step_s=0.1, prefill_s=0.1)
    outcome = run("vllm-sleep", Workload(("plain",), (Arrival(0.0, 0, 1, 80),)), device)
    assert outcome.requests[0].times[-1] == pytest.approx(LOAD_S + 80 * 0.1)


def test_prewarm_runs_a_model_at_once_that_was_asked_for_before() -> None:
    device = plain_device(step_s=0.01, prefill_s=0.1)
    work = (*arrivals([0.0], 5, 0), *arrivals([2.0], 5, 1), *arrivals([4.0], 5, 0), *arrivals([6.0], 5, 1))
    outcome = run("prewarm", Workload(("plain",) * 2, tuple(work)), device)
    waits = [request.times[0] for request in outcome.requests]
    assert waits == [pytest.approx(x) for x in (LOAD_S + 0.1, LOAD_S + 0.1, 0.1, 0.1)]


def test_prewarm_keeps_what_is_asked_for_often_where_not_all_fit() -> None:
    device = plain_device(step_s=0.01, prefill_s=0.1)  # 72 GB: seven of 10 GB
    often = arrivals([4.0 * i for i in range(24)], 5, 0)
    others = [a for m in range(1, 13) for a in arrivals([2.0 + 4.0 * m, 50 + 4.0 * (m - 1)], 5, m)]
    outcome = run("prewarm", in_order(("plain",) * 13, [*often, *others]), device)
    waits = [r.times[0] for r in outcome.requests if r.model == 0]
    assert waits[1:] == [pytest.approx(0.1)] * 23
    cold = [r for r in outcome.requests if r.times[0] > 0.2]
    assert len(cold) > 13  # seven of thirteen are warm, and each of the others is asked for once in 48 s
