"""Calibration of a GPU: its copies on the driver's double, and what is refused where there is no GPU."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner
from sidecar.driver_double import DriverDouble

from aegaeon_cli.calibration import Grid, grid_of, measure, measure_copies, side_by_side, timing
from aegaeon_cli.calibration.copies import stall_s_per_byte
from aegaeon_cli.main import main
from aegaeon_sidecar.models.layout import lay_out

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> DriverDouble:
    return DriverDouble(tmp_path_factory.mktemp("driver"))


def test_copies_of_a_gpu_run_on_its_streams_from_locked_memory_and_leave_nothing(
    driver: DriverDouble, tiny_models: dict[str, Path]
) -> None:
    layout = lay_out(tiny_models["llama"], 0, "float32", 16)
    copies = measure_copies(layout, 2 << 20, 1, driver.gpu)
    assert [nbytes for nbytes, _ in copies.load] == [int(layout.weight_bytes * part) for part in (0.25, 0.5, 0.75, 1)]
    assert min(seconds for _, seconds in [*copies.load, *copies.kv]) > 0
    assert side_by_side(1, driver.gpu) > 0
    assert driver.pageable_bytes == 0
    assert driver.locked == 0


@pytest.mark.parametrize("held_up_s", [0.005, 0.0])
def test_what_a_load_adds_to_steps_beside_it_is_a_device_s_stall(
    driver: DriverDouble, monkeypatch: pytest.MonkeyPatch, held_up_s: float
) -> None:
    clock, copies, slow, nbytes = [0.0], driver.calls("cuMemcpyAsync"), 0, 8 << 20
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def step() -> None:
        """1 ms of that clock, and longer while the lane copies."""
        nonlocal copies, slow
        time.sleep(0.001)
        before, copies = copies, driver.calls("cuMemcpyAsync")
        slow += copies > before
        clock[0] += 0.001 + held_up_s * (copies > before)

    stall = stall_s_per_byte(step, nbytes, 2 << 20, 4, driver.gpu)
    assert slow >= 4
    assert stall * 4 * 8 * nbytes == pytest.approx(slow * held_up_s, abs=1e-9)
    assert driver.locked == 0


def test_a_model_s_own_steps_are_measured_beside_loads(tiny_models: dict[str, Path]) -> None:
    grid = Grid(prompts=(16,), contexts=(16,), batches=(1,), rounds=1, loads=1)
    measured = measure(tiny_models["llama"], "float32", 0, grid, 256 << 10)
    assert 0 <= measured.stall_s_per_byte < 1e-6


def test_a_gpu_is_measured_at_the_lengths_that_it_serves(driver: DriverDouble) -> None:
    assert max(grid_of(driver.gpu, 3).prompts) == 8192
    assert grid_of(driver.gpu, 3).loads == 3
    assert (grid_of(None, 3).rounds, grid_of(None, 3).loads) == (3, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accelerator": {"device": "cuda:0"}}, "spec.accelerator.device cuda:0 cannot be used: NVIDIA's driver"),
        ({"accelerator": {"count": 2}}, "spec.accelerator.count 2 cannot be measured; allowed: 1"),
    ],
)
def test_what_cannot_be_measured_is_named(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    if "device" in said and Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU, which could be measured")
    for file in ("gpupool.yaml", "modelpool.yaml"):
        content = yaml.safe_load((QUICKSTART / file).read_text("utf-8"))
        if file == "gpupool.yaml":
            content["spec"] |= changes
        (tmp_path / file).write_text(yaml.safe_dump(content), "utf-8")
    result = CliRunner().invoke(main, ["calibrate", "-f", str(tmp_path), "--models", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.output
