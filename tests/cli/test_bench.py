"""`aegaeon bench`: timelines from spans and from recorded logs, as text and as pictures."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from rich.console import Console
from small_world import small_world

from aegaeon_cli.bench.batch import Switched
from aegaeon_cli.bench.command import summary
from aegaeon_cli.bench.lanes import Lanes, lanes_of, shares
from aegaeon_cli.bench.plots import draw_minute, draw_switch
from aegaeon_cli.bench.recording import busiest
from aegaeon_cli.bench.spans import Span, merged
from aegaeon_cli.bench.text import bar_of, timeline
from aegaeon_cli.main import main
from aegaeon_operator.podrunner import SegmentsFolder, node_folder, runs_of, sweep_node
from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import CommandId, InstanceId, Memory, ModelName, Role
from aegaeon_scheduler.core.log import LogWriter
from aegaeon_simulator.figures.errors import FiguresError

RUN = Switched(
    "A",
    "B",
    (
        Span("kv-out", "swap-out", "A", 0.000, 0.004, 40_000_000),
        Span("weights", "unload", "A", 0.000, 0.001),
        Span("weights", "map", "B", 0.001, 0.005),
        Span("weights", "load", "B", 0.005, 0.025, 260_000_000),
        Span("kv-in", "swap-in", "B", 0.004, 0.008, 40_000_000),
        Span("compute", "step", "B", 0.0255, 0.050),
    ),
    17e9,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two models that take turns on one modelled engine with room for one."""
    config = SchedulerConfig(policy=SlackSettings(), hold_s=1e9, refine=False)
    path = tmp_path / "events.log"
    with path.open("w") as out:
        writer = LogWriter(out, config, "test")
        world = small_world([Role.UNIFIED], models=2, slabs=130, observe=writer.write, config=config)
        for i in range(8):
            world.request(f"r{i}", ModelName(f"m{i % 2}"), 200, 60, 0.1 + 0.2 * i)
        world.run(30)
    return path


def test_a_switch_is_reported_with_its_limit_and_the_time_that_was_hidden():
    assert RUN.nbytes == 340_000_000
    assert RUN.moved_s - RUN.mapping_s == pytest.approx(0.021)
    assert RUN.limit_s == pytest.approx(0.020)
    assert RUN.hidden("swap-in") == pytest.approx(1.0)
    assert "the rest is 1.05 x memcpy of the same 340 MB at 17.0 GB/s" in summary([RUN])


def test_a_timeline_has_a_bar_for_every_span_in_the_order_of_the_lanes():
    console = Console(file=StringIO(), width=120, color_system=None)
    console.print(timeline(RUN))
    assert isinstance(console.file, StringIO)
    rows = console.file.getvalue().splitlines()[1:]
    assert [row.split()[1] for row in rows] == ["unload", "map", "load", "swap-out", "swap-in", "step"]
    assert all("█" in row for row in rows)
    assert bar_of(0.0, 0.000001, 1.0, 10) == "█"
    assert bar_of(0.95, 1.0, 1.0, 10) == " " * 9 + "█"


def test_equal_adjacent_spans_are_merged():
    a, b = Span("compute", "busy", "A", 0.0, 1.0), Span("compute", "busy", "A", 1.001, 2.0)
    other = Span("compute", "busy", "B", 2.0, 3.0)
    assert merged([a, b, other], 0.01) == [Span("compute", "busy", "A", 0.0, 2.0), other]


def test_an_engines_lanes_are_read_from_a_log(log: Path):
    lanes = lanes_of(log)
    spans = lanes.spans[InstanceId("e0")]
    assert {span.lane for span in spans} == {"weights", "kv-out", "kv-in", "compute"}
    mine = shares(spans)
    assert set(mine) == {"m0", "m1"}
    assert all(of["busy"] > 0 for of in mine.values())
    compute = sorted((s for s in spans if s.lane == "compute"), key=lambda span: span.begin_s)
    assert all(a.end_s <= b.begin_s + 1e-6 for a, b in pairwise(compute))


def test_waiting_for_another_models_first_report_is_switching_and_later_waits_are_stalls():
    lanes, engine = Lanes(), InstanceId("e0")
    for id, model in ((CommandId(1), "A"), (CommandId(2), "B")):
        turn = cmd.Turn(ModelName(model), (), (), 9, 1)
        sent = cmd.Send(engine, id, turn, (), "")
        lanes.see(0.0, ev.Tick(), [sent])
        for at in (1.0, 2.0):
            report = ev.TurnProgress(engine, id, (), 4, 0.5, 0, 0.0, 0.25, 1, 9, Memory(1, 1), end=at > 1)
            lanes.see(id * 10 + at, report, [])
    expected = {"busy": 1.0, "switching": 0.25, "stalled": 0.25}
    assert shares(lanes.spans[engine]) == {"A": expected, "B": expected}


def test_first_steps_are_busy_and_a_turn_that_warms_up_changes_no_running_model():
    """As the scheduler counts (core/reports.py)."""
    lanes, engine, id = Lanes(), InstanceId("e0"), CommandId(0)
    for model, warm_up in (("A", False), ("B", True), ("A", False)):
        id = CommandId(id + 1)
        turn = cmd.Turn(ModelName(model), (), (), 9, 1, warm_up)
        lanes.see(0.0, ev.Tick(), [cmd.Send(engine, id, turn, (), "")])
        computed = (0, 0.0) if warm_up else (4, 0.5)
        report = ev.TurnProgress(engine, id, (), *computed, 0, 0.0, 0.25, 1, 9, Memory(1, 1), True, first_s=0.2)
        lanes.see(10.0 * id, report, [])
    of_a = pytest.approx({"busy": 1.4, "switching": 0.25, "stalled": 0.25})
    assert shares(lanes.spans[engine]) == {"A": of_a, "B": pytest.approx({"busy": 0.2, "switching": 0, "stalled": 0})}


def test_a_window_of_the_busiest_engine_begins_with_its_first_turn(log: Path):
    engine, spans, seconds = busiest(log, 1.0)
    assert (engine, seconds) == ("e0", 1.0)
    assert min(span.begin_s for span in spans if span.lane == "compute") == pytest.approx(0.0)
    assert max(span.end_s for span in spans) <= 1.0 + 1e-9


def test_a_log_is_drawn_and_summarized(log: Path, tmp_path: Path):
    done = CliRunner().invoke(main, ["bench", "switch", "--log", str(log), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "switching" in done.output
    picture = ElementTree.parse(tmp_path / "out" / "minute.svg")
    assert "m0" in "".join(picture.getroot().itertext())
    assert not (tmp_path / "out" / "switch.svg").exists()


def test_the_same_switch_gives_the_same_picture(tmp_path: Path):
    for name in ("a.svg", "b.svg"):
        draw_switch(RUN, "One switch", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "kv-out lane" in "".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext())


def test_pictures_without_their_library_end_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for module in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(FiguresError, match="install it with"):
        draw_switch(RUN, "One switch", tmp_path / "switch.svg")
    with pytest.raises(FiguresError, match="install it with"):
        draw_minute([], 1.0, "A second", tmp_path / "minute.svg")
    done = CliRunner().invoke(main, ["bench", "switch", "--out", str(tmp_path / "pictures")])
    assert (done.exit_code, "install it with" in done.output) == (2, True), "before anything is measured"
    assert not (tmp_path / "pictures").exists()


def test_a_file_that_is_not_a_log_is_named(tmp_path: Path):
    wrong = tmp_path / "wrong.log"
    wrong.write_text("{}\nnothing\n")
    done = CliRunner().invoke(main, ["bench", "switch", "--log", str(wrong)])
    assert done.exit_code == 2
    assert "wrong.log: line 2" in done.output


@contextmanager
def bench_of_a_switch() -> Iterator[subprocess.Popen[str]]:
    """As a process of its own that has just begun."""
    command = [sys.executable, "-c", "from aegaeon_cli.main import main; main()"]
    command += ["bench", "switch", "--seconds", "0", "--rounds", "1", "--sequences", "1", "--tokens", "16"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("two models")
        yield process


def folders_of(pid: int) -> list[SegmentsFolder]:
    return [run for run in runs_of(node_folder(Path("/dev/shm"))) if pid in run.pids]


@pytest.mark.slow
def test_a_terminated_bench_leaves_nothing_in_shared_memory() -> None:
    with bench_of_a_switch() as process:
        (folder,) = folders_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    assert not folder.path.exists()


@pytest.mark.slow
def test_segments_of_a_killed_bench_are_found_and_removed() -> None:
    with bench_of_a_switch() as process:
        (folder,) = folders_of(process.pid)
        process.kill()
    node = node_folder(Path("/dev/shm"))
    assert [run.alive for run in runs_of(node) if run.path == folder.path] == [False]
    assert folder.path in sweep_node(node)
    assert not folder.path.exists()
