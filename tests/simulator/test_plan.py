"""The planner finds the fewest GPUs, knows how sure it is, prices what it finds, and refuses nonsense in a sentence."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_cli.main import main
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.plan import (
    FileError,
    ModelDemand,
    Objective,
    PlanError,
    Pool,
    PoolEvaluator,
    can_admit,
    plan,
    poisson_traffic,
    read_models,
    trace_traffic,
)
from aegaeon_simulator.plan.measure import busy_seconds, estimate
from aegaeon_simulator.plan.price import by_tenant, cost_per_million, model_costs, saving
from aegaeon_simulator.plan.search import fewest
from aegaeon_simulator.plan.static import with_copies
from aegaeon_simulator.results.outcome import Outcome, Served
from aegaeon_simulator.results.usage import DeviceUsage
from aegaeon_simulator.settings import Split
from aegaeon_simulator.workload import Arrival, Lengths, Workload

LENGTHS = Lengths(((200, 60), (600, 150), (100, 30)))
SLO = Slo(10.0, 0.1)
KINDS = ("qwen2_5_7b", "yi1_5_9b_chat", "llama2_13b")
CLAIMS = {"before": 1192, "after": 213, "saving": 0.82}  # section 7.5 of the paper


def demands(count: int, rate: float) -> list[ModelDemand]:
    return [ModelDemand(f"m{i}", KINDS[i % 3], rate, tenant=f"t{i % 2}") for i in range(count)]


def evaluator(count: int = 6, rate: float = 0.2, window_s: float = 60.0, slo: Slo = SLO) -> PoolEvaluator:
    traffic = poisson_traffic(demands(count, rate), LENGTHS, window_s)
    return PoolEvaluator(traffic, read_device("h800-policy"), Objective(slo), seeds=1)


# -- the search and its certainty -----------------------------------------------------------------------------------


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200))
def test_the_search_finds_the_smallest_count_whatever_the_guess(answer: int, high: int, guess: int) -> None:
    asked: list[int] = []

    def suffice(count: int) -> bool:
        asked.append(count)
        return count >= answer

    assert fewest(suffice, 1, high, guess) == (answer if answer <= high else None)
    assert len(set(asked)) <= 2 * math.log2(abs(answer - guess) + 2) + 6
    assert all(1 <= count <= high for count in asked)


def test_equal_slices_leave_no_doubt_and_unequal_ones_do() -> None:
    sure, unsure = estimate([(9, 10)] * 5, 0.95), estimate([(10, 10), (8, 10), (9, 10), (10, 10), (8, 10)], 0.95)
    assert sure is not None
    assert unsure is not None
    assert (sure.low, sure.mean, sure.high) == (0.9, 0.9, 0.9)
    assert unsure.mean == pytest.approx(0.9)
    assert unsure.low < 0.9 < unsure.high
    assert unsure.low == pytest.approx(0.9 - 2.132 * 0.1 / math.sqrt(5), abs=2e-3)  # Student's t, four degrees
    assert estimate([(0, 0)] * 3, 0.95) is None


def test_the_bound_is_below_the_truth_as_often_as_promised() -> None:
    chosen = random.Random(0)
    covered = 0
    for _ in range(400):
        slices = [(sum(chosen.random() < 0.85 for _ in range(60)), 60) for _ in range(6)]
        share = estimate(slices, 0.9)
        assert share is not None
        covered += share.low <= 0.85
    assert covered / 400 == pytest.approx(0.9, abs=0.05)


def test_one_more_model_leaves_the_arrivals_of_the_others_as_they_are() -> None:
    few, more = (poisson_traffic(demands(n, 0.3), LENGTHS, 60.0).draw(1) for n in (3, 4))
    assert [a for a in more.arrivals if a.model < 3] == list(few.arrivals)


def test_mean_lengths_that_are_given_are_kept() -> None:
    model = ModelDemand("m", KINDS[0], 20.0, input_tokens=1000, output_tokens=20)
    arrivals = poisson_traffic([model], LENGTHS, 200.0).draw(0).arrivals
    assert sum(a.input_tokens for a in arrivals) / len(arrivals) == pytest.approx(1000, rel=0.05)
    assert sum(a.output_tokens for a in arrivals) / len(arrivals) == pytest.approx(20, rel=0.05)


def test_a_trace_is_planned_for_its_busiest_window() -> None:
    calm = [Arrival(10.0 * i, 0, 10, 10) for i in range(10)]
    rush = [Arrival(200.0 + i, 1, 10, 100) for i in range(50)]
    traffic = trace_traffic(Workload(("qwen2_5_7b",) * 2, tuple(calm + rush)), 60.0)
    assert {a.model for a in traffic.draw(0).arrivals} == {1}
    assert traffic.draw(0).arrivals[0].t_s == 0.0
    assert [m.rate for m in traffic.models] == [0.0, pytest.approx(50 / 49.0, rel=1e-3)]


# -- costs ------------------------------------------------------------------------------------------------------------


def test_gpu_seconds_are_those_of_the_steps_that_the_tokens_came_from() -> None:
    device = read_device("h800-policy")
    kind = device.kind("qwen2_5_7b")
    together = [Served(0, 3, 0.0, [1.0, 2.0, 3.0]), Served(0, 3, 0.5, [0.6, 1.5, 2.5])]
    outcome = Outcome(together, [DeviceUsage()], 4.0, 1)
    expected = device.prefill_s(kind, [100]) + device.prefill_s(kind, [50])
    expected += device.step_s(kind, 101 + 51, 2) + device.step_s(kind, 102 + 52, 2)
    assert busy_seconds(outcome, [100, 50], ["qwen2_5_7b"], device) == [pytest.approx(expected)]


def test_the_pools_gpu_hours_are_divided_completely_among_models_and_tenants() -> None:
    costs = model_costs(demands(4, 0.5), [1.0] * 4, [1.0, 2.0, 3.0, 2.0], gpus=4)
    assert [c.gpus for c in costs] == [0.5, 1.0, 1.5, 1.0]
    assert [c.break_even_rate for c in costs] == [1.0, 0.5, pytest.approx(1 / 3), 0.5]
    assert by_tenant(costs) == {"t0": 48.0, "t1": 48.0}


def test_the_papers_saving_and_a_price_by_hand() -> None:
    assert saving(CLAIMS["before"], CLAIMS["after"]) == pytest.approx(CLAIMS["saving"], abs=0.002)
    assert cost_per_million(10, 2.0, 1000.0) == pytest.approx(20 / 3.6)


def test_copies_of_a_model_take_its_requests_in_turn() -> None:
    workload = Workload(("a", "b"), tuple(Arrival(float(i), i % 2, 1, 1) for i in range(8)))
    shaped = with_copies(workload, (2, 1))
    assert shaped.kinds == ("a", "a", "b")
    assert [a.model for a in shaped.arrivals] == [0, 2, 1, 2, 0, 2, 1, 2]


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_meets_the_objective_and_one_gpu_less_does_not() -> None:
    found = plan(evaluator(rate=0.6))
    assert found.meets
    assert found.best.share.low >= 0.9
    less = [p for p in found.curve if p.gpus == found.best.gpus - 1]
    assert found.best.gpus == 1 or less[0].share.low < 0.9
    assert found.static.dedicated == 6
    assert found.static.muxserve is not None
    assert found.best.gpus <= found.static.muxserve <= found.static.dedicated
    assert sum(c.gpus for c in found.costs) == pytest.approx(found.best.gpus)


def test_a_tighter_objective_never_takes_fewer_gpus() -> None:
    loose, tight = (plan(evaluator(3, 0.5, 40.0, Slo(10 * s, 0.1 * s))).best.gpus for s in (1.0, 0.2))
    assert tight >= loose


def test_every_model_is_held_to_its_own_objective() -> None:
    hopeless = [replace(m, slo=Slo(1e-3, 1e-3)) if m.name == "m1" else m for m in demands(3, 0.2)]
    traffic = poisson_traffic(hopeless, LENGTHS, 60.0)
    mixed = PoolEvaluator(traffic, read_device("h800-policy"), Objective(SLO), seeds=1)
    shares = mixed.point("slack", Split(unified=3)).models
    assert shares[1] == 0.0
    assert min(shares[0] or 0.0, shares[2] or 0.0) > 0.99
    assert mixed.point("dedicated", Split(unified=3)).models[1] == 0.0


def test_a_file_may_give_a_model_its_own_objective(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("kind,rate,ttft,tbt\n7b,0.1,2,0.05\n13b,0.1,,\n")
    first, second = read_models(tmp_path / "m.csv", KINDS)
    assert (first.slo, second.slo) == (Slo(2.0, 0.05), None)


def test_the_same_question_has_the_same_answer() -> None:
    assert plan(evaluator(count=3), gpus=1) == plan(evaluator(count=3), gpus=1)


def test_a_pool_accepts_a_model_while_it_fits_and_reports_what_is_missing_otherwise() -> None:
    pool, objective = Pool(Split(unified=1), read_device("h800-policy")), Objective(SLO)
    light, heavy = ModelDemand("new", KINDS[2], 0.05), ModelDemand("new", KINDS[2], 8.0, output_tokens=600)
    yes = can_admit(pool, demands(2, 0.1), light, objective, LENGTHS, seeds=1, window_s=40.0)
    assert yes.admit
    assert yes.more_gpus is None
    assert "can take it" in yes.reason
    no = can_admit(pool, demands(2, 0.1), heavy, objective, LENGTHS, seeds=1, window_s=40.0)
    assert not no.admit
    assert no.before == 1.0
    assert no.attainment < 0.9
    assert no.more_gpus is not None
    assert f"{no.more_gpus} more GPU" in no.reason
    grown = Pool(Split(unified=1 + no.more_gpus), pool.device)
    assert can_admit(grown, demands(2, 0.1), heavy, objective, LENGTHS, seeds=1, window_s=40.0).admit


# -- files and the command ------------------------------------------------------------------------------------------


def test_yaml_and_csv_say_the_same(tmp_path: Path) -> None:
    yaml, csv = tmp_path / "m.yaml", tmp_path / "m.csv"
    yaml.write_text(
        "models:\n  - {model: chat, kind: 7b, rate: 0.2, tenant: acme}\n  - {model: x, kind: 13b, rate: 1, count: 2}\n"
    )
    csv.write_text("model,kind,rate,tenant,count\nchat,7b,0.2,acme,\nx,13b,1,,2\n")
    known = read_device("h800-policy").kinds.keys()
    assert read_models(yaml, known) == read_models(csv, known)
    assert [m.name for m in read_models(csv, known)] == ["chat", "x-1", "x-2"]


@pytest.mark.parametrize(
    ("name", "text", "line", "problem"),
    [
        ("m.csv", "model,rate\na,1\n", 1, "lacks the column kind"),
        ("m.csv", "kind,rate\n7b,1\n70b,1\n", 3, "unknown kind '70b'"),
        ("m.csv", "kind,rate,ttft\n7b,1,2\n", 2, "has only one of ttft and tbt; add the other"),
        ("m.csv", "kind,rate\n7b,0\n", 2, "rate is '0'"),
        ("m.csv", "kind,rate\n7b,-1\n", 2, "greater than 0"),
        ("m.csv", "kind,rate\n7b,nan\n", 2, "rate is 'nan'"),
        ("m.csv", "kind,rate\n7b,1,2\n", 2, "more fields"),
        ("m.csv", "kind,rate,count\n7b,1,1.5\n", 2, "whole number"),
        ("m.csv", "model,kind,rate\na,7b,1\na,7b,1\n", 3, "appears twice"),
        ("m.yaml", "models:\n  - {kind: 7b, rate: 1}\n  - {kind: 7b, rate: fast}\n", 3, "rate is 'fast'"),
        ("m.yaml", "models:\n  - {kind: 7b, rate: 1, gpu: 2}\n", 2, "unknown field 'gpu'"),
        ("m.yaml", "models:\n  - 7b\n", 2, "not a mapping"),
        ("m.yaml", "models: [\n", 2, "not YAML"),
        ("m.yaml", "pools: []\n", 1, "`models:`"),
        ("m.yaml", "", 1, "`models:`"),
    ],
)
def test_a_bad_file_is_reported_with_its_line(tmp_path: Path, name: str, text: str, line: int, problem: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        read_models(path, read_device("h800-policy").kinds.keys())
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--models", "2", "--rate", "1", "--gpus", "0"], "at least one GPU"),
        (
            ["--models", "2", "--rate", "1", "--slo-tbt", "0"],
            "--slo-tbt 0: must be seconds from token to token, greater than 0",
        ),
        (["--models", "2", "--rate", "0"], "--rate 0: must be requests per second of each model, greater than 0"),
        (["--models", "0", "--rate", "1"], "at least one model"),
        (["--models", "2"], "needed together"),
        ([], "--file FILE"),
        (["--models", "2", "--rate", "1", "--kind", "70b"], "unknown kind '70b'"),
        (["--models", "2", "--rate", "1", "--attainment", "1.5"], "between 0 and 1"),
        (["--models", "2", "--rate", "1", "--policy", "magic"], "magic"),
        (["--models", "2", "--rate", "1", "--admit", "7b:1"], "--gpus N"),
        (["--models", "2", "--rate", "1", "--gpus", "1", "--admit", "7b"], "KIND:RATE"),
        (["--models", "2", "--rate", "1", "--seeds", "0"], "at least one run"),
        (["--models", "2", "--rate", "1", "--window", "-1"], "--window -1: must be seconds, greater than 0"),
    ],
)
def test_an_invalid_question_is_refused_in_one_sentence(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(main, ["plan", *arguments])
    assert result.exit_code == 2, result.output
    assert problem in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_model_that_fits_no_gpu_is_named_with_the_remedy(tmp_path: Path) -> None:
    shipped = resources.files("aegaeon_simulator") / "devices" / "h800-policy.json"
    small = json.loads(shipped.read_text("utf-8"))
    small["gpu"]["model_bytes"] = 20_000_000_000
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small))
    result = CliRunner().invoke(main, ["plan", "--models", "1", "--rate", "1", "--kind", "13b", "--device", str(path)])
    assert result.exit_code == 2
    assert "llama2_13b has 26.0 GB of weights and fits no" in result.output


def test_the_command_prints_tables_a_curve_and_what_is_derived(tmp_path: Path) -> None:
    models, output = tmp_path / "models.csv", tmp_path / "plan.json"
    models.write_text("model,kind,rate,tenant\na,7b,0.1,red\nb,13b,0.1,blue\nc,9b,0.1,blue\n")
    arguments = ["plan", "--file", str(models), "--window", "40", "--seeds", "1", "--json", str(output)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    for part in ("1 GPU (1 unified) meets", "dedicated GPUs", "on time against GPUs", "blue", "Derived, not measured"):
        assert part in result.output
    written = json.loads(output.read_text())
    assert written["gpus"] == 1
    assert written["serving"]["dedicated"]["gpus"] == 3
    assert set(written["gpu_hours_a_day_by_tenant"]) == {"red", "blue"}
    assert sum(written["gpu_hours_a_day_by_tenant"].values()) == pytest.approx(24.0)


def test_the_command_answers_whether_a_pool_takes_one_more() -> None:
    arguments = ["plan", "--models", "2", "--rate", "0.1", "--gpus", "1", "--admit", "7b:0.05", "--window", "40"]
    result = CliRunner().invoke(main, [*arguments, "--seeds", "1"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("yes: 1 unified can take it: with the candidate")


def test_a_trace_of_sessions_is_planned_and_the_baselines_have_none(tmp_path: Path) -> None:
    trace, output = tmp_path / "trace.csv", tmp_path / "plan.json"
    rows = [f"{2 * i},m{i % 2},7b,100,20,s{i % 3}" for i in range(30)]
    trace.write_text("t_s,model,model_kind,input_len,output_len,session\n" + "\n".join(rows) + "\n")
    result = CliRunner().invoke(main, ["plan", "--trace", str(trace), "--json", str(output)])
    assert result.exit_code == 0, result.output
    assert "Serving without a pool is simulated without sessions" in result.output
    written = json.loads(output.read_text())
    assert (written["sessions"], written["gpus"], written["serving"]["dedicated"]["gpus"]) == (3, 1, 2)


def test_no_pool_at_all_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="serve no request"):
        plan(evaluator(count=1), gpus=0)
