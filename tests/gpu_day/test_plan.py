"""The plan of a day on a GPU continues where it ended, whatever ended it, and no stage takes another one with it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from benchmarks.gpu_day import __main__ as runner
from benchmarks.gpu_day import manifests
from benchmarks.gpu_day.plan import Stage, chosen, stages
from benchmarks.gpu_day.short import FIRST, SECOND
from benchmarks.gpu_day.state import State
from benchmarks.gpu_day.where import Where
from benchmarks.report import Figures, Row

Run = Callable[..., int]
WHERE = Where(Path("out"), Path("work"), "cuda:0", small=False)


FIGURE = "import os; open(os.environ['FIGURES'], 'a').write('{}' + chr(10)); "


def stage(name: str, code: str, limit_s: float = 20.0, usual_s: float = 0.0) -> Stage:
    """Adds an empty figure, then runs the code."""
    return Stage(name, ("-c", FIGURE + code), limit_s, usual_s)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs these stages as a call of the program; its exit status."""

    def call(*plan: Stage, **options: str) -> int:
        given = [part for name, value in options.items() for part in (f"--{name}", value) if part]
        monkeypatch.setattr(runner, "stages", lambda where: plan)
        monkeypatch.setattr(runner, "write_summary", lambda where, state: None)
        monkeypatch.setenv("FIGURES", str(tmp_path / "out" / "figures.jsonl"))
        monkeypatch.setattr(sys, "argv", ["gpu_day", "--out", str(tmp_path / "out"), "--work", str(tmp_path), *given])
        return runner.main()

    return call


def running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def outcomes(folder: Path) -> dict[str, str]:
    return {name: r["outcome"] for name, r in json.loads((folder / "out" / "state.json").read_text()).items()}


def test_each_exit_status_has_its_outcome_and_a_failure_ends_no_other_stage(run: Run, tmp_path: Path) -> None:
    plan = [stage(f"exit-{code}", f"raise SystemExit({code})") for code in (1, 0, 3, 4)]
    assert run(*plan) == 1
    assert list(outcomes(tmp_path).values()) == ["failed", "finished", "bars missed", "skipped"]


def test_a_stage_that_adds_no_figure_has_failed(run: Run, tmp_path: Path) -> None:
    assert run(Stage("silent", ("-c", "pass"), 20.0, 0.0), stage("good", "pass")) == 1
    assert outcomes(tmp_path) == {"silent": "failed", "good": "finished"}


def test_stages_run_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    plan = stages(WHERE)
    assert [one.name for one in chosen(plan, ["pool", "probes"])] == ["pool", "probes"]
    assert chosen(plan, None) == list(plan)
    with pytest.raises(ValueError, match="no stage is called pools; there are probes, models,"):
        chosen(plan, ["pools"])


def test_a_later_call_runs_what_is_not_over_and_failed_stages_only_when_asked(run: Run, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    plan = [
        stage(name, f"open({str(marks)!r}, 'a').write({name[0]!r}); raise SystemExit({code})")
        for name, code in (("good", 0), ("bad", 1))
    ]
    assert run(*plan) == 1
    assert run(*plan) == 1
    assert marks.read_text() == "gb"
    assert run(*plan, again="") == 1
    assert marks.read_text() == "gbb"


def test_a_stage_that_needs_more_time_than_is_left_waits_for_the_next_call(run: Run, tmp_path: Path) -> None:
    plan = [stage("short", "pass"), stage("long", "pass", usual_s=500.0)]
    assert run(*plan, budget="100") == runner.NOT_ALL
    assert outcomes(tmp_path) == {"short": "finished"}
    assert run(*plan, budget="600") == 0
    assert outcomes(tmp_path) == {"short": "finished", "long": "finished"}


def test_a_stage_past_its_limit_is_ended_with_its_children(run: Run, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import subprocess as s, sys, time; c = s.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f"open({str(pid)!r}, 'w').write(str(c.pid)); time.sleep(60)"
    )
    assert run(stage("endless", code, limit_s=6.0)) == 1
    assert outcomes(tmp_path) == {"endless": "timed out"}
    deadline = time.monotonic() + 10.0  # it was sent the signal; a busy machine takes its time to end it
    while running(int(pid.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stage_in_which_the_machine_was_lost_is_tried_once_more(tmp_path: Path) -> None:
    for lost in range(2):
        state = State(tmp_path / "state.json")
        assert not state.is_over("probes"), f"after {lost} losses"
        state.begin("probes")
    assert State(tmp_path / "state.json").is_over("probes")


def test_results_of_a_machine_that_is_gone_are_taken_over(run: Run, tmp_path: Path) -> None:
    assert run(stage("first", "pass")) == 0
    (tmp_path / "out").rename(tmp_path / "before")
    assert run(stage("first", "raise SystemExit(1)"), stage("second", "pass"), before=str(tmp_path / "before")) == 0
    assert outcomes(tmp_path) == {"first": "finished", "second": "finished"}


def test_every_figure_is_in_the_file_before_the_next_is_measured(tmp_path: Path) -> None:
    figures = Figures("copies", tmp_path / "figures.jsonl")
    for number in range(3):
        figures.add(Row("rate", number, "GB/s", 1.0, ">="))
        lines = (tmp_path / "figures.jsonl").read_text().splitlines()
        assert [json.loads(text)["value"] for text in lines] == list(range(number + 1))
    assert not figures.hold


def test_the_plan_reaches_the_prediction_before_anything_else_in_two_calls() -> None:
    """Of fifteen minutes with the machine's start and packages: 575 s and 240 s."""
    plan = stages(WHERE)
    assert len({s.name for s in plan}) == len(plan)
    assert all(s.usual_s <= s.limit_s < 9 * 60 for s in plan)
    usual = {s.name: s.usual_s for s in plan}
    assert sum(usual[name] for name in FIRST) <= 575 - 60
    assert list(usual)[: len(FIRST) + len(SECOND)] == [*FIRST, *SECOND]
    assert all(s.usual_s == 0 for s in stages(replace(WHERE, small=True)))


def test_a_machine_with_little_shared_memory_ends_the_stage_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host cache of less than nothing would be refused as a manifest."""
    for shared, free, engines, wanted in ((80, 100, 1, 46), (8, 100, 1, 4), (20, 22, 2, 6)):
        machine = SimpleNamespace(shared_memory_free=shared << 30, memory_free=free << 30)
        monkeypatch.setattr(manifests, "look", lambda folder, machine=machine: machine)
        assert manifests._model_cache(engines, 46 << 30) == wanted << 30
    monkeypatch.setattr(
        manifests, "look", lambda folder: SimpleNamespace(shared_memory_free=8 << 30, memory_free=14 << 30)
    )
    with pytest.raises(SystemExit, match=r"2 engines need 8 GiB for KV .* mount -o remount,size=80G /dev/shm"):
        manifests._model_cache(2, 46 << 30)
