"""The soak benchmark's own machinery: what it draws, what it takes for wrong, and what it counts as a leak."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """module("census"): a part of the benchmark, imported from the repository's root."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


def test_the_same_seed_draws_the_same_visits_and_all_kinds_are_drawn(module: Any) -> None:
    visits = module("visits")
    one, other = (visits.Visits(["a", "b"], 1) for _ in range(2))
    drawn = [one.draw() for _ in range(400)]
    assert drawn == [other.draw() for _ in range(400)]
    assert {visit.status for visit in drawn} == {200, 400, 404}
    assert any(visit.leave_s is not None for visit in drawn)
    bodies = [json.loads(visit.body) for visit in drawn if visit.status == 200]
    assert {body["n"] for body in bodies} == {1, 2, 3}
    assert {body["stream"] for body in bodies} == {True, False}
    assert any("stop" in body for body in bodies)
    assert any(body["max_tokens"] == 1 for body in bodies)


@pytest.mark.parametrize(
    ("n", "finish", "word"), [(1, "length", ""), (1, None, "finish reasons"), (2, "stop", "2 choices asked for")]
)
async def test_an_answer_with_a_wrong_finish_reason_is_wrong(
    module: Any, peer: Any, n: int, finish: str | None, word: str
) -> None:
    visits = module("visits")
    body = json.dumps({"model": "m", "prompt": "x", "stream": True, "n": n}).encode()
    async with peer(lambda _: [("x", [7], finish)]) as url, visits.Visitor(url) as visitor:
        ending = await visitor.make(visits.Visit("/v1/completions", body))
        refused = await visitor.make(visits.Visit("/v1/completions", body, status=400))
    assert word in ending.wrong
    assert bool(ending.wrong) == bool(word)
    assert "HTTP 200 instead of 400" in refused.wrong


async def test_an_answer_whose_client_disconnected_is_not_wrong(module: Any, peer: Any) -> None:
    visits = module("visits")
    body = json.dumps({"model": "m", "prompt": "x", "stream": True, "n": 1}).encode()
    async with peer(lambda _: [("x", [7], None)] * 10_000) as url, visits.Visitor(url) as visitor:
        ending = await visitor.make(visits.Visit("/v1/completions", body, leave_s=0.001))
    assert ending.left
    assert not ending.wrong


def test_a_leak_makes_a_figure_miss(module: Any) -> None:
    census = module("census")
    slack = census.Slack(files=2, threads=0, mappings=10**6, own_mib=10**6)
    before = {"p": census.holdings(os.getpid())}
    opened = [os.dup(2) for _ in range(3)]
    rows = census.growth(before, {"p": census.holdings(os.getpid())}, slack)
    assert [row.figure.split(" (")[0] for row in rows if not row.holds] == ["p: files"]
    for file in opened:
        os.close(file)
    assert all(row.holds for row in census.growth(before, {"p": census.holdings(os.getpid())}, slack))
