"""The pages' figures: made from results by the table, marked where what they measure has changed, and none typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.conditions import ROOT, SOURCES, measured_paths, paths_of, state, state_of
from benchmarks.pages.__main__ import FILLED, PAGES, filled, pages
from benchmarks.pages.fields import FIELD, FieldError, Fields
from benchmarks.pages.records import CONDITIONS, Records
from benchmarks.pages.typed import constants_of, typed

RECORDS = Records(ROOT)
FIELDS = Fields(RECORDS)
OLDER = "<!-- older: made by `make generate` -->\n<!-- end of older -->\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without git: results and the core's sources alone."""
    shutil.copytree(ROOT / "benchmarks" / "results", tmp_path / "benchmarks" / "results")
    shutil.copytree(ROOT / "native" / "src", tmp_path / "native" / "src")
    shutil.copytree(ROOT / "native" / "include", tmp_path / "native" / "include")
    return tmp_path


def rewrite(checkout: Path, name: str, **changes: Any) -> None:
    file = checkout / "benchmarks" / "results" / f"{name}.json"
    rows = [row | changes for row in json.loads(file.read_text("utf-8"))]
    file.write_text(json.dumps(rows), "utf-8")


@pytest.mark.parametrize("file", list(pages(PAGES + FILLED)), ids=lambda file: file.name)
def test_a_page_is_as_its_results_have_it_and_no_number_with_a_unit_is_typed(file: Path) -> None:
    page = file.read_text("utf-8")
    assert filled(page, FIELDS) == page, "run make generate"
    name = file.relative_to(ROOT).as_posix()
    assert name in FILLED or list(typed(page, constants_of(name))) == []


def test_every_row_has_its_conditions_and_every_result_file_names_what_it_measures() -> None:
    for name in RECORDS.names():
        assert name == "recorded" or paths_of(name), name
        for row in RECORDS.rows(name):
            assert set(row) >= set(CONDITIONS), (name, row["figure"])
    for path in {path for paths in measured_paths().values() for path in paths}:
        assert (ROOT / path).exists(), path


def test_a_figure_follows_its_result(checkout: Path) -> None:
    page = f"copies at <!--slabs.blocks-->?<!--/--> M/s\n\n{OLDER}"
    rewrite(checkout, "slabs", value=7_400_000)
    assert "copies at <!--slabs.blocks-->7.4<!--/--> M/s" in filled(page, Fields(Records(checkout)))


def test_a_figure_of_other_sources_is_marked_with_its_run(checkout: Path) -> None:
    page = f"Run <!--slabs.blocks:run-->?<!--/-->\n\n{OLDER}"
    rewrite(checkout, "slabs", sources=state_of(paths_of("slabs"), checkout), date="2026-11-28", commit="0123abcd")
    assert "<!--slabs.blocks:run-->2026-11-28<!--/-->\n" in filled(page, Fields(Records(checkout)))
    assert "No figure on this page is older" in filled(page, Fields(Records(checkout)))
    state_of.cache_clear()
    with (checkout / "native" / "src" / "slabs.cpp").open("a") as source:
        source.write("// another state\n")
    marked = filled(page, Fields(Records(checkout)))
    assert "<!--slabs.blocks:run-->2026-11-28 †<!--/-->" in marked
    assert "`slabs` (2026-11-28, 0123abcd)" in marked


def test_a_missed_bar_is_listed_first_and_said_to_be_missed(checkout: Path) -> None:
    missed = "<!-- missed: made by `make generate` -->\n<!-- end of missed -->\n"
    page = f"It <!--slabs.blocks:held-->?<!--/-->\n{missed}{OLDER}"
    rewrite(checkout, "slabs", holds=False, bar=">= 1 x limit", limit=2e6)
    made = filled(page, Fields(Records(checkout)))
    assert "<!--slabs.blocks:held-->**missed**<!--/-->" in made
    assert "| `slabs`: alloc+free, batches of 4 to 16 blocks |" in made
    assert (ROOT / "docs" / "measured.md").read_text("utf-8").index("## Missed") < 500


def test_the_state_of_sources_is_that_of_their_names_and_contents() -> None:
    one_file = [("a.py", b"x")]
    assert state([("a.py", b"x"), ("b.py", b"y")]) == state([("b.py", b"y"), ("a.py", b"x")])
    assert len({state(one_file), state([("b.py", b"x")]), state([("a.py", b"xx")]), state([])}) == 4
    assert state_of(("native/src",)) == state(
        (file.relative_to(ROOT).as_posix(), file.read_bytes())
        for file in (ROOT / "native" / "src").rglob("*")
        if file.suffix in SOURCES
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It takes 37 ms or 1,200 GB/s, 6.3 % and 3/s.", ["37 ms", "1,200 GB/s", "6.3 %", "3/s"]),
        ("`37 ms`, [a](b-37 ms), v1.2 s and section 7.5", []),
        ("It takes 37\nms, and 12\n\nms", ["37 ms"]),
        ("It takes <!--switch.load-->26<!--/--> ms.", []),
        ("| what | measured | bar |\n|---|---|---|\n| a | 37, 1.5 | 2 ms |", ["37,", "1.5"]),
        ("```\n37 ms\n```\n", []),
    ],
)
def test_numbers_with_a_unit_are_found(text: str, numbers: list[str]) -> None:
    assert [number for _, number in typed(text, {})] == numbers


def test_a_constant_that_is_not_on_its_page_is_an_error() -> None:
    assert list(typed("It waits 10 s.", {"setting": ["10 s"]})) == []
    assert list(typed("It waits.", {"setting": ["10 s"]})) == [(0, "10 s")]


@pytest.mark.parametrize(
    ("page", "says"),
    [
        ("At <!--slabs.none-->?<!--/-->" + OLDER, r"no field slabs\.none"),
        ("At <!--slabs.blocks-->5.0<!--/--> M/s.", "no block `older`"),
        ("It is <!--switch.load:bar-->?<!--/-->." + OLDER, "its row has no bar"),
        ("- <!--slabs.blocks-->5.0<!--/--> M/s." + OLDER, "begins a line"),
        ("At\n<!--slabs.blocks-->5.0<!--/--> M/s." + OLDER, "begins a line"),
        ("<!-- unknown: made by `make generate` -->\n<!-- end of unknown -->", "no block is called `unknown`"),
    ],
)
def test_a_wrong_page_is_refused_by_what_is_wrong(page: str, says: str) -> None:
    with pytest.raises(FieldError, match=says):
        filled(page, FIELDS)


def test_every_field_of_the_table_can_be_read() -> None:
    for file, named in FIELDS.table.items():
        for name in named:
            assert FIELD.fullmatch(f"<!--{file}.{name}-->x<!--/-->"), name
            assert FIELDS.text(file, name, None)
