"""Figures by model, tenant, class of objective and session, and of the models that are served worst."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from simulator.runs import SLO, arrivals, plain_device

from aegaeon_cli.main import main
from aegaeon_scheduler.core.config import PaperSettings, SlackSettings
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.errors import SettingsError
from aegaeon_simulator.results.outcome import Served
from aegaeon_simulator.results.shares import by_class, by_session, by_tenant, latencies, worst_decile
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival, TraceError, Workload, read_trace
from aegaeon_simulator.workload.objectives import read_slos

HEADER = "t_s,model,model_kind,input_len,output_len,tenant,session\n"
STRICT, LOOSE = Slo(1.0, 0.1), Slo(60.0, 0.1)


def request(model: int, *times: float, tenant: str = "", session: str = "", length: int = 2) -> Served:
    return Served(model, length, 0.0, list(times), None, tenant, 0.0, session)


def figures(*arguments: str) -> dict[str, Any]:
    ran = CliRunner().invoke(main, [*arguments, "--json", "-"])
    assert ran.exit_code == 0, ran.output
    result: dict[str, Any] = json.loads(ran.output)
    return result


# -- pure functions ----------------------------------------------------------------------------------------------------


def test_the_worst_decile_is_the_mean_of_the_models_with_the_fewest_tokens_on_time() -> None:
    on_time, late = (0.5, 0.6), (50.0, 60.0)
    requests = [request(m, *(late if m in (3, 7) else on_time)) for m in range(11)]
    requests += [request(3, *on_time)]  # half of its tokens
    result = worst_decile(requests, lambda model: SLO)
    assert result is not None
    assert result["models"] == 2  # a tenth of eleven, rounded up
    assert result["attainment"]["token"] == pytest.approx((0.0 + 0.5) / 2)
    assert worst_decile([], lambda model: SLO) is None


def test_each_class_is_held_to_its_own_objective() -> None:
    requests = [request(0, 5.0, 5.1), request(1, 5.0, 5.1), request(1, 0.5, 0.6)]
    strict, loose = by_class(requests, lambda model: (LOOSE, STRICT)[model])
    assert (strict["slo"], strict["models"], strict["attainment"]["token"]) == ({"ttft_s": 1.0, "tbt_s": 0.1}, 1, 0.5)
    assert (loose["slo"]["ttft_s"], loose["attainment"]["token"]) == (60.0, 1.0)


def test_a_deferred_request_is_due_so_much_later() -> None:
    late = request(0, 30.0, 30.1)
    assert by_class([late], lambda model: SLO)[0]["attainment"]["token"] == 0.0
    late.defer_s = 60.0
    assert by_class([late], lambda model: SLO)[0]["attainment"]["token"] == 1.0


def test_tenants_without_a_name_are_no_part() -> None:
    result = by_tenant([request(0, 0.5, 0.6, tenant="red"), request(0, 90.0, 91.0)], lambda model: SLO)
    assert set(result) == {"red"}
    assert result["red"]["attainment"]["token"] == 1.0


def test_latency_is_that_of_answers_delivered_whole() -> None:
    result = latencies([request(0, 0.5, 2.0), request(0, 0.5)])
    assert result is not None
    assert result["max"] == 2.0
    assert latencies([request(0, 0.5)]) is None


def test_a_session_lasts_from_its_first_request_to_the_end_of_its_last_answer() -> None:
    later = request(0, 1.0, 2.0, session="a")
    later.arrival_s = 10.0
    result = by_session([request(0, 0.5, 1.0, session="a"), later, request(0, session="b"), request(0, 0.1, 0.2)])
    assert (result["offered"], result["finished"], result["seconds"]["max"]) == (2, 1, 12.0)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_trace_may_name_tenants_and_sessions(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,a,7b,5,6,red,s1\n1,a,7b,5,6,,\n")
    first, second = read_trace(path).arrivals
    assert (first.tenant, first.session, second.tenant, second.session) == ("red", "s1", "", "")


def test_models_that_the_file_omits_keep_their_objective(tmp_path: Path) -> None:
    path = tmp_path / "slos.csv"
    path.write_text("model,ttft_s,tbt_s\nb,60,0.2\n")
    assert read_slos(path, ["a", "b"], [SLO, SLO]) == (SLO, Slo(60.0, 0.2))


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("model,ttft_s\na,1\n", 1, "lacks the columns tbt_s"),
        ("model,ttft_s,tbt_s\nz,1,1\n", 2, "model 'z' has no requests; the models are a, b"),
        ("model,ttft_s,tbt_s\na,1,1\na,1,1\n", 3, "model a appears twice"),
        ("model,ttft_s,tbt_s\na,soon,1\n", 2, "ttft_s is 'soon'; it must be seconds"),
        ("model,ttft_s,tbt_s\na,1,0\n", 2, "tbt_s is '0'"),
        ("model,ttft_s,tbt_s\na,1\n", 2, "has no tbt_s; add what is missing, or remove the line"),
        ("ttft_s,tbt_s,model\n1\n", 2, "has no model and no tbt_s"),
        ("model,ttft_s,tbt_s\n,1,1\n", 2, "has no model;"),
    ],
)
def test_a_bad_file_of_objectives_is_refused_with_its_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = tmp_path / "slos.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        read_slos(path, ["a", "b"], [SLO, SLO])
    assert f"{path}:{line}: " in str(caught.value)
    assert problem in str(caught.value)


# -- runs --------------------------------------------------------------------------------------------------------------


def run(requests: Sequence[Arrival], settings: Settings, models: int = 1) -> list[Served]:
    device = plain_device(step_s=0.05, prefill_s=0.1)
    return simulate(Run(settings, Workload(("plain",) * models, tuple(requests)), device)).requests


def unified(policy: str = "slack") -> Settings:
    return Settings(policy, Split(unified=1), SLO)


def test_a_request_of_a_session_is_sent_when_the_answer_before_it_has_ended() -> None:
    chain = [replace(a, session="s") for a in arrivals([0.0, 0.1, 100.0], length=40)]
    first, second, third = run(chain, unified())
    assert second.arrival_s == pytest.approx(first.arrival_s + first.times[-1])
    assert third.arrival_s == 100.0
    assert len(third.times) == 40
    apart = run(arrivals([0.0, 0.1, 100.0], length=40), unified())
    assert apart[1].arrival_s == 0.1


def test_the_next_request_of_a_session_is_sent_though_the_one_before_was_refused() -> None:
    hopeless = replace(unified(), hold_s=0.5, slo=Slo(0.2, 0.1))
    busy = arrivals([0.0], length=200)
    chain = [replace(a, session="s", model=1) for a in arrivals([0.1, 0.2], length=5)]
    tight = replace(plain_device(step_s=0.05, prefill_s=30.0), model_bytes=15_000_000_000)
    result = simulate(Run(hopeless, Workload(("plain",) * 2, (*busy, *chain)), tight)).requests
    assert result[1].refused
    assert result[2].arrival_s == pytest.approx(result[1].arrival_s + (result[1].refused_s or 0.0))


def test_a_baseline_has_no_sessions() -> None:
    chain = [replace(a, session="s") for a in arrivals([0.0], length=4)]
    with pytest.raises(SettingsError, match="leave the column session out"):
        run(chain, unified("dedicated"))


@pytest.mark.parametrize("policy", ["slack", "vllm-sleep"])
def test_every_policy_keeps_the_tenant_of_a_request(policy: str) -> None:
    result = run([replace(a, tenant="red") for a in arrivals([0.0], length=4)], unified(policy))
    assert [r.tenant for r in result] == ["red"]


def test_a_request_is_refused_after_as_long_as_in_a_pool_with_default_settings() -> None:
    """One engine, a prompt of 100 s: what comes behind it waits for `hold` and for its objective, and no longer."""
    device = replace(plain_device(step_s=0.05, prefill_s=100.0), model_bytes=15_000_000_000)
    work = Workload(("plain",) * 2, (*arrivals([0.0], length=4), *arrivals([1.0], length=4, model=1)))
    held, patient = (
        simulate(Run(replace(unified(), slos=(SLO, slo)), work, device)).requests[1] for slo in (SLO, Slo(60.0, 0.1))
    )
    assert held.refused_s == pytest.approx(30.0, abs=1.0)
    assert patient.refused_s == pytest.approx(60.0, abs=1.0)


def test_a_policy_can_be_run_with_other_settings_than_its_defaults() -> None:
    two = [*arrivals([0.0, 0.2], length=100), *arrivals([0.1, 0.3], length=100, model=1)]
    short = replace(unified("paper"), split=Split(prefill=1, decode=1), tuned=PaperSettings(q_max_s=0.2))
    default = replace(short, tuned=None)
    assert run(two, short, 2) != run(two, default, 2)
    assert run(two, replace(unified(), tuned=SlackSettings()), 2) == run(two, unified(), 2)


def test_a_model_of_the_sleep_baseline_stays_awake_for_as_long_as_settings_say() -> None:
    two = [*arrivals([0.0], length=400), *arrivals([0.5], length=4, model=1)]
    waits = [run(two, replace(unified("vllm-sleep"), awake_s=awake_s), 2)[1].times[0] for awake_s in (0.0, 8.0)]
    assert waits[0] < 4.0
    assert waits[1] > 7.0


# -- commands ----------------------------------------------------------------------------------------------------------


def test_simulate_takes_objectives_by_model(tmp_path: Path) -> None:
    trace, slos = tmp_path / "trace.csv", tmp_path / "slos.csv"
    trace.write_text(HEADER + "".join(f"{i},m{i % 2},7b,100,40,t{i % 3},\n" for i in range(12)))
    slos.write_text("model,ttft_s,tbt_s\nm1,0.000001,0.000001\n")
    result = figures("simulate", "--trace", str(trace), "--slos", str(slos), "--unified", "2", "--slo-scale", "0.5")
    assert result["models"]["m0"]["slo"] == {"ttft_s": 5.0, "tbt_s": 0.05}
    assert (result["models"]["m0"]["attainment"]["token"], result["models"]["m1"]["attainment"]["token"]) == (1.0, 0.0)
    assert [(c["models"], c["attainment"]["token"]) for c in result["classes"]] == [(1, 0.0), (1, 1.0)]
    assert set(result["tenants"]) == {"t0", "t1", "t2"}
    assert sum(t["requests"]["offered"] for t in result["tenants"].values()) == 12
    assert result["worst_decile"]["attainment"]["token"] == 0.0
    assert 0 < result["latency_s"]["p50"] <= result["latency_s"]["max"]


def test_several_seeds_have_means_of_classes_and_of_the_worst_decile(tmp_path: Path) -> None:
    slos = tmp_path / "slos.csv"
    slos.write_text("model,ttft_s,tbt_s\n1,2,0.02\n")
    arguments = (
        "simulate",
        "--rate",
        "0.2",
        "--models",
        "3",
        "--duration",
        "20",
        "--unified",
        "1",
        "--slos",
        str(slos),
    )
    both = figures(*arguments, "--seeds", "2")
    strict = [run["classes"][0]["attainment"]["token"] for run in both["runs"]]
    assert both["mean"]["classes"][0]["slo"] == {"ttft_s": 2.0, "tbt_s": 0.02}
    assert both["mean"]["classes"][0]["attainment"]["token"] == pytest.approx(sum(strict) / 2)
    worst = [run["worst_decile"]["attainment"]["token"] for run in both["runs"]]
    assert both["mean"]["worst_decile"]["attainment"]["token"] == pytest.approx(sum(worst) / 2)
    shown = CliRunner().invoke(main, arguments).output
    assert "worst tenth of the models" in shown
    assert "TTFT 2 s, TBT 0.02 s" in shown


def test_a_plan_takes_objectives_by_model_and_reports_its_parts(tmp_path: Path) -> None:
    models, slos = tmp_path / "models.csv", tmp_path / "slos.csv"
    models.write_text("model,kind,rate,tenant\na,7b,0.3,red\nb,7b,0.3,blue\n")
    slos.write_text("model,ttft_s,tbt_s\nb,0.000001,0.000001\n")
    arguments = ("plan", "--file", str(models), "--slos", str(slos), "--gpus", "1", "--window", "40", "--seeds", "1")
    result = figures(*arguments)
    assert result["attainment_by_tenant"] == {"blue": 0.0, "red": pytest.approx(1.0, abs=0.05)}
    assert (result["classes"][0]["slo"]["ttft_s"], result["classes"][0]["attainment"]) == (0.000001, 0.0)
    assert [model["slo"]["ttft_s"] for model in result["models"]] == [10.0, 0.000001]
    assert result["worst_decile"] == 0.0
    assert result["latency_s"]["p50"] > 0
    shown = CliRunner().invoke(main, arguments).output
    assert "tenant blue" in shown
    assert "worst tenth of the models" in shown


def test_a_file_of_objectives_for_unknown_models_is_one_sentence(tmp_path: Path) -> None:
    slos = tmp_path / "slos.csv"
    slos.write_text("model,ttft_s,tbt_s\nother,1,1\n")
    for command in (["simulate", "--rate", "1", "--models", "1"], ["plan", "--rate", "1", "--models", "1"]):
        result = CliRunner().invoke(main, [*command, "--slos", str(slos)])
        assert result.exit_code == 2
        assert "slos.csv:2: model 'other' has no requests" in result.output
