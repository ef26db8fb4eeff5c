"""Traces are read exactly or refused with file, line and remedy; Poisson traces nest and repeat."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from click.testing import CliRunner

from aegaeon_scheduler.core.domain import Terms, Tier
from aegaeon_simulator.workload import Arrival, Lengths, TraceError, Workload, WorkloadError, poisson, read_trace
from aegaeon_simulator.workload.convert import main as convert
from aegaeon_simulator.workload.terms import with_terms

HEADER = "t_s,model,model_kind,input_len,output_len\n"
LENGTHS = Lengths(((10, 20), (30, 40), (5, 1)))


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_trace_gives_its_models_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "0.5,2,qwen2.5-7b,10,20\n1.0,0,llama2-13b,3,4\n")
    workload = read_trace(path)
    assert workload.kinds == ("llama2_13b", "qwen2_5_7b", "qwen2_5_7b")
    assert workload.arrivals == (Arrival(0.5, 2, 10, 20), Arrival(1.0, 0, 3, 4))


def test_a_compressed_trace_takes_its_kinds_from_the_models_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("t_s,model,input_len,output_len\n0,1,10,20\n")
    models = write(tmp_path, "model,kind\n0,7b\n1,13b\n", "models.csv")
    assert read_trace(path, models_file=models).kinds == ("qwen2_5_7b", "llama2_13b")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("t_s,input_len,output_len\n", 1, "model (or model_idx)"),
        (HEADER + "0,0,7b,10,20\nx,0,7b,10,20\n", 3, "must be seconds"),
        (HEADER + "2,0,7b,10,20\n1,0,7b,10,20\n", 3, "sort the rows"),
        (HEADER + "nan,0,7b,10,20\n", 2, "sort the rows"),
        (HEADER + "0,0,7b,-1,20\n", 2, "input_len is '-1'"),
        (HEADER + "0,0,7b,10,99999999\n", 2, "output_len is '99999999'"),
        (HEADER + "0,0,huge,10,20\n", 2, "unknown kind 'huge'"),
        (HEADER + "0,,7b,10,20\n", 2, "has no model"),
        (HEADER + "0,0,,10,20\n", 2, "--kind"),
    ],
)
def test_a_bad_trace_is_refused_with_file_and_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert f"{path}:{line}: " in str(caught.value)
    assert problem in str(caught.value)


def test_an_empty_or_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        read_trace(write(tmp_path, HEADER))
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "absent.csv")


def test_a_poisson_trace_of_fewer_models_or_seconds_is_a_part_of_the_larger_one() -> None:
    whole = poisson(LENGTHS, models=20, rate=0.5, duration_s=100, seed=3)
    assert poisson(LENGTHS, models=7, rate=0.5, duration_s=100, seed=3) == whole.first_models(7)
    assert poisson(LENGTHS, models=20, rate=0.5, duration_s=40, seed=3) == whole.window(40)
    assert whole.kinds[:10] == ("qwen2_5_7b",) * 6 + ("yi1_5_9b_chat",) * 2 + ("llama2_13b",) * 2


def test_a_poisson_trace_has_the_rate_asked_for() -> None:
    workload = poisson(LENGTHS, models=50, rate=0.2, duration_s=1000, seed=0)
    assert len(workload.arrivals) == pytest.approx(10_000, rel=0.04)  # four standard deviations


def test_scaling_changes_times_and_lengths_alone() -> None:
    workload = Workload(("qwen2_5_7b",), (Arrival(4.0, 0, 10, 3),))
    assert workload.scaled(time=2, input_tokens=2, output_tokens=0.1).arrivals == (Arrival(2.0, 0, 20, 1),)
    with pytest.raises(WorkloadError):
        workload.scaled(time=0)
    with pytest.raises(WorkloadError, match="has 1 models"):
        workload.first_models(2)


def test_a_trace_of_one_model_with_milliseconds_is_converted(tmp_path: Path) -> None:
    source, target = tmp_path / "chat.csv", tmp_path / "trace.csv"
    source.write_text("t_ms,input_len,output_len\n0,12,3\n1500,20,4\n")
    assert CliRunner().invoke(convert, [str(source), str(target)]).exit_code == 0
    workload = read_trace(target)
    assert workload.arrivals == (Arrival(0.0, 0, 12, 3), Arrival(1.5, 0, 20, 4))
    source.write_text("when,input_len,output_len\n0,12,3\n")
    failed = CliRunner().invoke(convert, [str(source), str(target)])
    assert failed.exit_code == 2
    assert "misses the column 't_ms'" in failed.output


def test_names_that_look_like_numbers_but_are_not_places_stay_names(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("t_s,model,input_len,output_len\n0,007,1,2\n1,9,1,2\n")
    assert read_trace(path, kind="7b").names == ("007", "9")


def test_tiers_and_weights_come_from_the_models_file(tmp_path: Path) -> None:
    workload = Workload(("qwen2_5_7b",) * 3, (), ("a", "b", "c"))
    path = tmp_path / "models.csv"
    path.write_text("model,tier,weight\na,batch,\nc,,3\n")
    assert with_terms(workload, path).terms == (Terms(Tier.BATCH), Terms(), Terms(weight=3))
    path.write_text("model,kind\na,qwen2.5-7b\n")
    assert with_terms(workload, path) is workload


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("a,urgent,1", "2: unknown tier 'urgent'; use one of interactive, standard, batch"),
        ("a,batch,0", "2: weight is '0'; it must be a whole number from 1 to 100"),
        (",batch,1", "2: has no model; fill the column model"),
    ],
)
def test_invalid_terms_are_reported_with_file_and_line(row: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "models.csv"
    path.write_text(f"model,tier,weight\n{row}\n")
    with pytest.raises(TraceError, match=f"models.csv:{sentence}"):
        with_terms(Workload(("qwen2_5_7b",), ()), path)


def test_a_name_of_many_digits_is_a_name(tmp_path: Path) -> None:
    long = "9" * 5000
    path = tmp_path / "trace.csv"
    path.write_text(f"t_s,model,model_kind,input_len,output_len\n0,{long},7b,1,5\n1,None,7b,1,5\n")
    assert read_trace(path).names == (long, "None")
