"""Steps beside a load, or beside calls of the driver, are enough to tell something, and a load's end is its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import gpu_beside
from benchmarks.gpu_beside import LEAST_STEPS, Decoding
from benchmarks.gpu_rig import Bench
from benchmarks.report import Figures
from sidecar.driver_double import DriverDouble


class Steps(Decoding):
    """Each takes so long, and computes nothing."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def step(self) -> None:
        time.sleep(self._seconds)


def test_page_locks_are_beside_enough_steps_however_long_their_pages_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = torch.ones

    def slow_ones(*size: Any, **options: Any) -> torch.Tensor:
        time.sleep(2 * gpu_beside.LOCKING_S)
        return ones(*size, **options)

    monkeypatch.setattr(gpu_beside, "LOCKING_S", 0.3)
    monkeypatch.setattr(torch, "ones", slow_ones)
    double, file = DriverDouble(tmp_path), tmp_path / "figures"
    gpu_beside.beside_locking(Bench("cpu", double.gpu, True, Figures("beside", file)), Steps(0.005), 0.005)
    rows = [json.loads(text) for text in file.read_text("utf-8").splitlines()]
    steps = next(row for row in rows if row["figure"] == "steps beside calls that lock pages")
    assert steps["value"] >= LEAST_STEPS
    assert steps["holds"]
    assert double.locked == 0


def test_a_single_step_beside_calls_misses_its_bar(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    bench = Bench("cpu", None, True, Figures("beside", file))
    gpu_beside._beside_calls(bench, Steps(0.05), lambda: time.sleep(0.01), 0.02, "calls", 0.05)
    assert not json.loads(file.read_text("utf-8").splitlines()[0])["holds"]


def test_a_load_ends_when_its_bytes_are_there_and_not_with_the_step_beside_it() -> None:
    taken, seconds = gpu_beside.beside_load(Steps(0.5), lambda: None, lambda: time.sleep(0.05))
    assert len(taken) == 1
    assert 0.05 <= seconds < 0.4
