"""How many processors take part in an engine's products."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aegaeon_sidecar.processors import spare_processors


@pytest.fixture(autouse=True)
def twelve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))


@pytest.mark.parametrize(("engines", "spare"), [(0, 0), (1, 7), (2, 5), (3, 3), (7, 0), (12, 0), (40, 0)])
def test_each_engine_has_its_share_and_one_of_it_is_its_own(engines: int, spare: int, tmp_path: Path) -> None:
    assert spare_processors(engines, tmp_path / "none") == spare


@pytest.mark.parametrize(
    ("quota", "spare"),
    [("max 100000", 5), ("400000 100000", 1), ("150000 100000", 0), ("50000 100000", 0), ("99000000 100000", 5)],
)
def test_a_container_has_no_more_than_its_quota(quota: str, spare: int, tmp_path: Path) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(quota + "\n")
    assert spare_processors(2, file) == spare
