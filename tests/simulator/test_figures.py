"""Figures: curves look for their crossing, results are kept and taken up again, plots and page repeat byte for byte."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_cli.main import main
from aegaeon_simulator.devices import Kind, read_device
from aegaeon_simulator.figures import book as books
from aegaeon_simulator.figures import comparison
from aegaeon_simulator.figures.actives import active_counts, expected_active, figure_4
from aegaeon_simulator.figures.cache import CORE_ALONE, Cache, code_version
from aegaeon_simulator.figures.catalog import FORMS, OURS, Panel, panels
from aegaeon_simulator.figures.claims import oracle, published, verdicts
from aegaeon_simulator.figures.curves import Curve
from aegaeon_simulator.figures.errors import FiguresError
from aegaeon_simulator.figures.measure import PARTS, measure
from aegaeon_simulator.figures.page import page
from aegaeon_simulator.figures.points import Poisson, Trace, run_of
from aegaeon_simulator.figures.runner import Runner
from aegaeon_simulator.results.attainment_curve import crossing
from aegaeon_simulator.settings import POLICIES

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
SMALL = Panel("small", "11", "small", "models", Poisson(0, 0.1, 10.0), (4.0, 8.0), policies=("paper", "dedicated"))


def falling_at(load: float) -> Any:
    """Results of a system that carries so much, and falls by a point for each load beyond."""

    def at(x: float) -> dict[str, Any]:
        return {"attainment": dict.fromkeys(FORMS, min(1.0, 0.9 + (load - x) / 100))}

    return at


def finished(curve: Curve, results: Any) -> int:
    """Run a curve to its end; how many loads it asked for."""
    asked = 0
    while (load := curve.next_load()) is not None:
        curve.results[load] = [results(load)] * len(curve.seeds)
        asked += 1
    return asked


@given(st.integers(20, 90))
def test_a_curve_finds_its_crossing_with_few_runs(carried: int) -> None:
    curve = Curve(replace(SMALL, loads=(16.0, 32.0, 64.0, 96.0, 128.0)), "paper", range(1))
    assert finished(curve, falling_at(carried)) <= 7
    found = crossing(curve.line("token"))
    assert found is not None
    assert abs(found - carried) <= 2


def test_a_curve_ends_where_everything_is_late() -> None:
    curve = Curve(replace(SMALL, loads=(16.0, 32.0, 64.0)), "slack", range(1))
    assert finished(curve, falling_at(1)) == 1
    assert crossing(curve.line("token")) == 16.0


def test_a_baseline_is_run_beyond_the_loads_that_ours_carries() -> None:
    curve = Curve(replace(SMALL, loads=(16.0, 32.0, 64.0)), "paper", range(1))
    assert finished(curve, falling_at(2)) == 2
    assert curve.share(32.0, "token") < 0.75


def test_a_panel_that_is_not_refined_runs_exactly_its_loads() -> None:
    curve = Curve(replace(SMALL, refine=False), "paper", range(1))
    finished(curve, falling_at(1))
    assert sorted(curve.results) == [4.0, 8.0]


def test_shares_are_means_over_seeds() -> None:
    curve = Curve(SMALL, "paper", range(2))
    curve.results[4.0] = [falling_at(4)(4), falling_at(4)(14)]
    assert curve.share(4.0, "token") == pytest.approx(0.85)


def test_points_have_the_least_and_the_most_of_their_seeds() -> None:
    kept = dict.fromkeys(("requests", "ttft_s", "latency_parts", "stalls_s", "gpu_seconds"))
    other = {"derived": [], "switches": 1, "prefetch_hits": 0, "stall_s": 0.0, "span_s": 1.0, **kept}
    curve = Curve(SMALL, "paper", range(3))
    curve.results[4.0] = [{**falling_at(4)(x), **other} for x in (9, 4, 14)]

    book = books.book_of([curve], figure_4(), {})

    assert book.line("small", "paper", "token") == [(4.0, pytest.approx(0.85))]
    assert book.band("small", "paper", "token") == [(pytest.approx(0.8), pytest.approx(0.9))]


def test_every_panel_has_a_name_of_its_own_and_points_that_can_be_built() -> None:
    declared = panels(20.0)
    assert len({panel.name for panel in declared}) == len(declared)
    assert {panel.figure for panel in declared} == {"11", "12", "13", "14", "17", "shapes"}
    for panel in declared:
        run = run_of(panel.point(OURS, panel.loads[0], 0), DATA)
        assert run.workload.arrivals, panel.name
        for kind in set(run.workload.kinds):
            assert isinstance(run.device.kind(kind), Kind)


def test_all_policies_have_as_many_devices() -> None:
    for panel in panels(5.0):
        totals = {panel.point(policy, panel.loads[0], 0).split.total for policy in POLICIES}
        assert totals == {panel.roles.total}, panel.name


def test_devices_of_the_figures_say_what_is_derived() -> None:
    assert read_device("a10").derived
    assert any("72B" in line for line in read_device("h800-tp4").derived)


def test_a_missing_trace_is_reported_with_the_remedy(tmp_path: Path) -> None:
    panel = replace(SMALL, work=Trace("none.csv"))
    with pytest.raises(FiguresError, match=r"none\.csv: no such trace; set --data"):
        run_of(panel.point("paper", 1, 0), tmp_path)


def test_parts_of_latency_add_up_and_the_same_point_gives_the_same_result() -> None:
    point = SMALL.point("paper", 4, 0)
    found = measure(point, DATA)
    assert set(found["latency_parts"]) == set(PARTS)
    assert sum(found["latency_parts"].values()) == pytest.approx(1.0)
    assert found == measure(point, DATA)


def test_results_are_kept_by_what_decides_them(tmp_path: Path) -> None:
    cache, point = Cache(tmp_path, DATA), SMALL.point("paper", 4, 0)
    assert cache.get(point) is None
    cache.put(point, {"x": 1})
    assert cache.get(point) == {"x": 1}
    for other in (replace(point, seed=1), replace(point, policy="dedicated"), SMALL.point("paper", 5, 0)):
        assert cache.get(other) is None


def test_a_policy_s_results_depend_on_its_own_sources_alone() -> None:
    assert len({code_version(policy) for policy in ("paper", "slack", "dedicated")}) == 3
    assert code_version("dedicated") == code_version("paper-artifact")


def test_no_baseline_imports_what_its_version_leaves_out() -> None:
    script = "import sys, aegaeon_simulator.baselines; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "aegaeon_simulator.clock" in loaded
    assert not [name for name in loaded if name.startswith(tuple(f"aegaeon_simulator.{part}" for part in CORE_ALONE))]


def test_a_second_run_takes_everything_from_the_cache(tmp_path: Path) -> None:
    def run() -> list[Curve]:
        return Runner(Cache(tmp_path, DATA), DATA, 1).run([SMALL], 1, lambda done, total, doing: None)

    first = run()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert [curve.results for curve in run()] == [curve.results for curve in first]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept


def test_active_models_follow_theorem_3_1() -> None:
    assert expected_active(100, 0.037, 16.79) == pytest.approx(46.27, abs=0.01)
    assert active_counts(100, 0.037, 16.79, 3600.0, 0).mean() == pytest.approx(46.27, rel=0.03)


def test_every_claim_has_a_verdict_even_without_runs() -> None:
    rows = verdicts(books.Book({}, figure_4(), {}))
    assert [row.id for row in rows] == [claim["id"] for claim in published()["claims"]]
    arithmetic = {row.id for row in rows if row.within}
    assert arithmetic == {"thm3.1", "fig4", "pool_bound", "switch_lb", "prod_gpus"}
    assert not any(row.within is False for row in rows)


def book_with(shares: dict[str, float]) -> books.Book:
    """The artifact's first panel with these attainments at 64 models."""
    curves = {policy: [{"load": 64, "attainment": dict.fromkeys(FORMS, share)}] for policy, share in shares.items()}
    about = {"figure": "11", "title": "t", "axis": "models", "device": "artifact", "derived": ["a: assumed"]}
    run = {"duration_s": 300.0, "seeds": 1}
    return books.Book({"11a-artifact": {**about, "curves": curves}}, figure_4(), run)


def test_points_of_the_artifact_are_held_within_two_points() -> None:
    rows = {(o.policy, o.load): o for o in oracle(book_with({"paper-artifact": 0.93, "serverlessllm": 0.5}))}
    assert rows["paper-artifact", 64].within
    assert rows["serverlessllm", 64].within is False
    assert rows["paper-artifact", 80].within is None


def test_the_page_says_where_ours_is_below_the_best_baseline() -> None:
    text = page(book_with({OURS: 0.8, "serverlessllm-fair": 0.9, "dedicated": 0.2}), "figures")
    assert "| 11a-artifact | 64 | token | 80.0 | 90.0 | serverlessllm-fair |" in text
    assert "3 comparisons, in 3 of them" in text


def test_ours_is_held_against_the_line_between_loads_and_the_end_of_a_curve_that_had_ended() -> None:
    book = book_with({OURS: 0.8, "serverlessllm-fair": 0.9})
    curves = book.panels["11a-artifact"]["curves"]
    curves["serverlessllm-fair"] += [{"load": 80, "attainment": dict.fromkeys(FORMS, 0.7)}]
    curves[OURS] = [{"load": load, "attainment": dict.fromkeys(FORMS, 0.796)} for load in (72, 96)]
    by_load = {point.load: point for point in comparison.points(book) if point.form == "token"}
    assert by_load[72].best == pytest.approx(0.8)
    assert not by_load[72].behind
    assert by_load[96].best == pytest.approx(0.7)
    assert comparison.report(book) == {"comparisons": 6, "behind": [], "by_more_than": 0.005}


def test_the_page_names_what_was_not_run() -> None:
    expected = page(book_with({OURS: 0.9}), "figures").split("missing below: ")[1].split(".\n")[0].split(", ")
    assert expected == [panel.name for panel in panels(300.0) if panel.name != "11a-artifact"]


def test_the_page_names_panels_of_an_earlier_run() -> None:
    book = book_with({OURS: 0.9})
    assert "with the others as they were then:\n11a-artifact.\n" in page(book, "figures")
    book.panels["11a-artifact"]["curves"] |= {policy: [] for policy in POLICIES if policy != OURS}
    assert "as they were then" not in page(book, "figures")


def test_figures_are_made_drawn_again_and_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the figures extra is not installed")
    given = ["figures", "--data", str(DATA), "--out", str(tmp_path / "figures"), "--page", str(tmp_path / "page.md")]
    made = CliRunner().invoke(
        main, [*given, "--only", "14-0.5", "--duration", "2", "--workers", "1", "--cache", str(tmp_path / "cache")]
    )
    assert made.exit_code == 0, made.output
    before = digests(tmp_path)
    assert {"standing.json", "figure-4.svg", "figure-14-0.5.svg", "figure-14-0.5.json", "page.md"} <= set(before)
    assert CliRunner().invoke(main, [*given, "--draw"]).exit_code == 0
    assert digests(tmp_path) == before


def digests(folder: Path) -> dict[str, str]:
    """Of all that was made."""
    made = [p for p in folder.rglob("*") if p.is_file() and "cache" not in p.parts]
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in made}


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [(["--only", "99"], "--only 99: no such panel"), (["--draw", "--out", "/nowhere"], "make them with")],
)
def test_figures_that_cannot_be_made_are_reported(wrong: list[str], expected: str) -> None:
    found = CliRunner().invoke(main, ["figures", *wrong])
    assert found.exit_code == 2
    assert expected in found.output
