"""`aegaeon simulate` as people meet it: the same bytes for the same seed, and one sentence for what cannot be run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aegaeon_cli.main import main
from aegaeon_simulator.settings import POLICIES

POISSON = ("--rate", "0.2", "--models", "6", "--duration", "20")
HEADER = "t_s,model,model_kind,input_len,output_len\n"


def simulate(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("simulate", *arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


def figures(*arguments: str) -> dict[str, Any]:
    code, output = simulate(*arguments, "--json", "-")
    assert code == 0, output
    found: dict[str, Any] = json.loads(output)
    return found


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{0.5 * i},m{i % 3},7b,100,40\n" for i in range(12)))
    return path


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_reports_the_same_metrics(policy: str) -> None:
    found = figures(*POISSON, "--policy", policy)
    counts = found["requests"]
    assert (
        0 < counts["finished"] <= counts["offered"] == sum(m["requests"]["offered"] for m in found["models"].values())
    )
    assert set(found["attainment"]) == {"token", "request", "time"}
    assert all(0.0 <= share <= 1.0 for share in found["attainment"].values())
    assert sum(found["gpu_seconds"].values()) == pytest.approx(16 * found["span_s"])
    assert found["ttft_s"]["p50"] <= found["ttft_s"]["p99"] <= found["ttft_s"]["max"]
    assert 0 <= found["prefetch_hits"] <= found["switches"]


def test_output_names_what_is_derived_rather_than_measured() -> None:
    device = figures(*POISSON, "--policy", "paper")["device"]
    assert any("not measured" in line for line in device["derived"])
    assert device["licence"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same_bytes(policy: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for path in (first, second):
        assert simulate(*POISSON, "--policy", policy, "--seed", "3", "--json", str(path))[0] == 0
    assert first.read_bytes() == second.read_bytes()
    assert figures(*POISSON, "--policy", policy, "--seed", "4") != json.loads(first.read_text())


def test_seeds_run_side_by_side_and_equal_those_run_alone() -> None:
    asked = (*POISSON, "--policy", "paper", "--slo-scale", "0.1")
    both = figures(*asked, "--seeds", "2", "--seed", "5")
    assert both["runs"] == [figures(*asked, "--seed", str(seed)) for seed in (5, 6)]
    mean = both["mean"]
    for path in (("attainment", "token"), ("ttft_s", "p99"), ("tbt_s", "p50"), ("models", "3", "attainment", "time")):
        values = [_at(run, path) for run in both["runs"]]
        assert _at(mean, path) == pytest.approx(sum(values) / 2)


def _at(figures: dict[str, Any], path: tuple[str, ...]) -> float:
    found: Any = figures
    for name in path:
        found = found[name]
    return float(found)


def test_a_trace_may_be_compressed(trace: Path, tmp_path: Path) -> None:
    packed = tmp_path / "trace.csv.gz"
    packed.write_bytes(gzip.compress(trace.read_bytes()))
    plain, compressed = (figures("--trace", str(path), "--policy", "paper") for path in (trace, packed))
    assert plain == compressed
    assert set(plain["models"]) == {"m0", "m1", "m2"}


def test_a_trace_may_begin_with_a_byte_order_mark(trace: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + trace.read_bytes())
    plain, with_mark = (figures("--trace", str(path), "--policy", "dedicated") for path in (trace, marked))
    assert plain == with_mark


def test_scales_change_lengths_and_objectives(trace: Path) -> None:
    longer = figures("--trace", str(trace), "--policy", "dedicated", "--output-scale", "2", "--slo-scale", "0.5")
    once = figures("--trace", str(trace), "--policy", "dedicated")
    assert longer["slo"] == {"tbt_s": 0.05, "ttft_s": 5.0}
    assert longer["gpu_seconds"]["decode"] > 1.5 * once["gpu_seconds"]["decode"]


def test_a_file_of_calibrate_is_a_device(trace: Path, tmp_path: Path) -> None:
    constants = {"a": 0.02, "b": 0.0, "c": 0.001, "p0": 0.01, "p1": 0.0001, "p2": 0.0, "floor": 0.01}
    rates = {"load_bytes_per_s": 4e9, "kv_bytes_per_s": 4e9}
    file = tmp_path / "constants.json"
    file.write_text(json.dumps({"constants": [{"model": "qwen2_5_7b", "device": "cpu", **constants, **rates}]}))
    found = figures("--trace", str(trace), "--policy", "paper", "--device", str(file))
    assert found["requests"]["finished"] == 12
    assert any("sizes" in line for line in found["device"]["derived"])


BAD = {
    "missing column": ("t_s,model,model_kind,input_len\n0,a,7b,1\n", "trace.csv:1: lacks the columns output_len"),
    "negative length": (HEADER + "0,a,7b,-1,5\n", "trace.csv:2: input_len is '-1'"),
    "absurd length": (HEADER + "0,a,7b,1,99999999\n", "trace.csv:2: output_len is '99999999'"),
    "out of order": (HEADER + "5,a,7b,1,5\n1,a,7b,1,5\n", "trace.csv:3: t_s is 1.0 after 5.0; sort the rows"),
    "unknown kind": (HEADER + "0,a,900b,1,5\n", "trace.csv:2: unknown kind '900b'"),
    "too large for any GPU": (
        HEADER + "0,a,large-32-72b-tp4,1,5\n",
        "but of llama2_13b, qwen2_5_7b, yi1_5_9b_chat; use models of these",
    ),
    "a length in superscript": (HEADER + "0,a,7b,²,5\n", "trace.csv:2: input_len is '²'"),
    "a length of many digits": (HEADER + f"0,a,7b,{'9' * 5000},5\n", "trace.csv:2: input_len is '999"),
    "two kinds of one model": (
        HEADER + "0,a,7b,1,5\n1,a,13b,1,5\n",
        "trace.csv:3: model a is of kind llama2_13b here and of qwen2_5_7b before; give it one kind",
    ),
    "nothing": (HEADER, "trace.csv: holds no request"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD.keys())
def test_a_bad_trace_is_reported_with_file_line_and_remedy(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    code, output = simulate("--trace", str(path), "--policy", "paper")
    assert code == 2
    assert sentence in output
    assert output.startswith("Error: ")
    assert output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--policy", "best"), "--policy best is unknown; known are slack, paper"),
        (
            ("--policy", "paper", "--unified", "0"),
            "--unified 0: no GPU is left to run on; give --unified",
        ),
        (("--policy", "paper", "--prefill", "2"), "--prefill 2, --decode 0: one role is missing"),
        (("--policy", "paper", "--unified", "-1"), "--unified -1: no GPU is left"),
        (("--policy", "paper", "--slo-ttft", "0"), "--slo-ttft 0: must be seconds to the first token, greater than 0"),
        (("--policy", "paper", "--slo-scale", "0"), "--slo-scale 0: must be a factor, greater than 0"),
        (("--policy", "paper", "--output-scale", "0"), "--output-scale 0: must be a factor, greater than 0"),
        (
            ("--policy", "paper", "--device", "nowhere.json"),
            "nor one of a10, artifact, h800-harsh, h800-policy, h800-tp4",
        ),
        (("--policy", "paper", "--seeds", "0"), "at least one run"),
        (("--policy", "paper", "--rate", "inf"), "greater than 0 and finite"),
        (("--policy", "paper", "--speedup", "nan"), "greater than 0 and finite"),
        (("--policy", "paper", "--slo-tbt", "nan"), "--slo-tbt nan: must be seconds from token to token"),
        (("--policy", "paper", "--window", "-1"), "--window -1: must be seconds, greater than 0"),
        (("--policy", "paper", "--window", "nan"), "--window nan: must be seconds, greater than 0"),
        (("--policy", "paper", "--seed", "-1"), "Invalid value for '--seed'"),
        (
            ("--policy", "serverlessllm", "--admission", "feasible"),
            "--admission feasible: policy serverlessllm has no admission control; use --policy slack or paper",
        ),
        (("--policy", "paper", "--device", "a10", "--kind", "13b"), "a10 has no constants of llama2_13b, but of "),
        (("--policy", "paper", "--drain", "-1"), "seconds after the last arrival"),
        (("--policy", "paper", "--models", "0"), "must be greater than 0"),
        (("--policy", "paper", "--host-cache", "0"), "must be more than 0"),
        (("--policy", "dedicated", "--host-cache", "100"), "with every model in host memory"),
        (
            ("--policy", "paper", "--trace", "some.csv"),
            "--trace has its own arrivals; remove --rate and --duration",
        ),
    ],
)
def test_an_impossible_run_is_one_sentence_and_exit_status_2(arguments: tuple[str, ...], sentence: str) -> None:
    code, output = simulate(*POISSON, *arguments)
    assert code == 2
    assert sentence in output


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        ((1_700_000_000, 1_700_000_001), "from 0 s to 1700000000 s"),
        ((0, 1_000_000_000), "from 0 s to 1000000000 s"),
    ],
)
def test_years_without_a_request_are_refused_rather_than_walked_through(
    times: tuple[int, int], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "".join(f"{t},a,7b,1,5\n" for t in times))
    code, output = simulate("--trace", str(path))
    assert code == 2
    assert sentence in output
    assert ("subtract the first time" in output) == (times[0] > 0)
    assert simulate("--trace", str(path), "--speedup", "1e7")[0] == 0


def test_a_missing_trace_is_reported() -> None:
    code, output = simulate("--trace", "nowhere.csv", "--policy", "paper")
    assert code == 2
    assert "nowhere.csv: cannot be read" in output


def test_a_damaged_archive_is_reported(trace: Path, tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(trace.read_bytes()))
    packed[20:40] = bytes(20)
    path = tmp_path / "damaged.csv.gz"
    path.write_bytes(bytes(packed))
    code, output = simulate("--trace", str(path), "--policy", "paper")
    assert code == 2
    assert "damaged.csv.gz" in output


def test_without_requests_the_usage_is_shown() -> None:
    code, output = simulate("--policy", "paper")
    assert code == 2
    assert "add --trace FILE, or --rate and --models" in output


def test_a_models_file_sets_tiers_and_attainment_is_reported_for_each(tmp_path: Path) -> None:
    models = tmp_path / "models.csv"
    models.write_text("model,tier,weight\n0,interactive,1\n2,batch,2\n")
    found = figures(*POISSON, "--unified", "2", "--models-file", str(models))
    assert set(found["tiers"]) == {"interactive", "standard", "batch"}
