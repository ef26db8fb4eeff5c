"""What a benchmark records: rows with their conditions, and shortened runs apart from the record."""

from __future__ import annotations

import argparse
import ast
import json
from datetime import date
from pathlib import Path

import pytest
from benchmarks import conditions, report
from benchmarks.report import Row, read_settings

PROGRAMS = [
    *sorted((conditions.ROOT / "benchmarks").glob("*.py")),
    *(conditions.ROOT / folder / "__main__.py" for folder in ("tests/fuzz", "tests/attacks", "e2e/chaos")),
]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "SHORTENED", tmp_path / "build" / "results")
    return tmp_path


def test_a_row_has_the_conditions_of_its_run(folders: Path) -> None:
    report.report("slabs", [Row("a figure", 1.0, "s")])
    [file] = (folders / "results").iterdir()
    [row] = json.loads(file.read_text("utf-8"))
    assert date.fromisoformat(row["date"])
    assert row["machine"]
    assert row["cores"] >= 1
    assert row["load"] >= 0
    assert row["cpu_level"] in file.name or row["cpu_level"] == "avx512"
    assert row["sources"] == conditions.state_of(conditions.paths_of("slabs"))
    assert row["commit"] == conditions.commit(conditions.paths_of("slabs"))


def test_a_shortened_run_leaves_the_record_as_it_is(folders: Path) -> None:
    report.report("slabs", [Row("a figure", 1.0, "s")], short=True)
    assert not (folders / "results").exists()
    assert list((folders / "build" / "results").glob("slabs*.json"))


@pytest.mark.parametrize(
    ("arguments", "short"),
    [
        ([], False),
        (["--switches", "10000", "--models", "elsewhere", "--seed", "3"], False),
        (["--switches", "300"], True),
    ],
)
def test_a_run_is_short_by_its_settings(arguments: list[str], short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--switches", type=int, default=10_000)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    monkeypatch.setattr("sys.argv", ["benchmark", *arguments])
    assert read_settings(parser).short is short


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.parent.name}-{program.stem}")
def test_a_program_with_settings_says_of_each_report_whether_it_is_short(program: Path) -> None:
    text = program.read_text("utf-8")
    if program.stem == "levels":  # its argument is for the process that it starts of itself
        return
    if "ArgumentParser" not in text and "sys.argv" not in text and "by_point" not in text:
        return
    for call in ast.walk(ast.parse(text)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "report":
            assert len(call.args) == 3 or {"short"} == {keyword.arg for keyword in call.keywords}, ast.unparse(call)
