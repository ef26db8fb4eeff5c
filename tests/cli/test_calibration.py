"""Calibration: fits that find what was put in, a file that the scheduler reads, and real models that are measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_cli.calibration import Fit, Machine, ModelConstants, fit_copy, fit_prefill, fit_step, write_constants
from aegaeon_cli.main import main
from aegaeon_scheduler.config import SchedulerConfig, core_config
from aegaeon_simulator.devices import read_device

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
CONTEXTS, BATCHES, PROMPTS = (16, 128, 384), (1, 2, 4, 8, 16), (16, 64, 128, 256, 512)
coefficient = st.floats(1e-7, 1e-2)


@given(coefficient, st.floats(1e-9, 1e-6), coefficient)
def test_the_step_fit_finds_the_constants_that_made_the_measurements(a: float, b: float, c: float) -> None:
    points = [(n * m, m, a + b * n * m + c * m) for n in CONTEXTS for m in BATCHES]
    fit = fit_step(points)
    assert fit.mean_error < 1e-6
    assert fit.coefficients == pytest.approx((a, b, c), rel=1e-3, abs=1e-9)


@given(coefficient, st.floats(1e-7, 1e-4), st.floats(1e-10, 1e-7))
def test_the_prefill_fit_finds_the_constants_that_made_the_measurements(p0: float, p1: float, p2: float) -> None:
    fit = fit_prefill([(n, p0 + p1 * n + p2 * n * n) for n in PROMPTS])
    assert fit.mean_error < 1e-6
    assert fit.r2 > 0.999


@given(st.lists(st.floats(1e-4, 1.0), min_size=5, max_size=5))
def test_no_coefficient_is_ever_negative(seconds: list[float]) -> None:
    fit = fit_prefill(list(zip(PROMPTS, seconds, strict=True)))
    assert min(fit.coefficients) >= 0
    assert fit.r2 <= 1


@given(st.floats(1e-12, 1e-8))
def test_the_copy_fit_finds_the_rate_that_made_the_measurements(s_per_byte: float) -> None:
    fit = fit_copy([(n, n * s_per_byte) for n in (1 << 10, 1 << 16, 1 << 24)])
    assert fit.coefficients == pytest.approx((s_per_byte,), rel=1e-6)
    assert fit.r2 > 0.999


MACHINE = Machine(8e9, 1.9, 2.0**-36, 2e9, 13 << 20, 256 << 10, 16, 16, 12 << 20)


def constants() -> ModelConstants:
    step, prefill = Fit((1e-3, 2e-7, 3e-5), 0.98, 0.02), Fit((4e-3, 5e-6, 6e-9), 0.99, 0.01)
    load, kv = Fit((2.0**-32,), 0.99, 0.01), Fit((2.0**-31,), 0.99, 0.01)
    return ModelConstants("llama", "cpu", step, prefill, load, kv, 7e-3, 5 << 20, 4096, 2048)


def test_the_scheduler_reads_the_constants_that_are_written(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "constants.json"
    write_constants(file, [constants()], MACHINE)
    settings = SchedulerConfig(listen="unix:/x", models=(), constants=file)
    (read,) = core_config(settings).constants
    k = read.constants
    assert (read.model, read.device) == ("llama", "cpu")
    assert (k.a, k.b, k.c, k.p0, k.p1, k.p2) == (1e-3, 2e-7, 3e-5, 4e-3, 5e-6, 6e-9)
    assert (k.floor, k.load_bytes_per_s, k.kv_bytes_per_s) == (7e-3, 2.0**32, 2.0**31)


def test_the_simulator_takes_the_same_file_for_a_device(tmp_path: Path) -> None:
    file = tmp_path / "constants.json"
    write_constants(file, [constants()], MACHINE)
    device = read_device(str(file))
    assert (device.model_bytes, device.slab_bytes, device.disk_bytes_per_s) == (13 << 20, 256 << 10, 2e9)
    kind = device.kind("llama")
    assert (kind.weight_bytes, kind.kv_bytes_per_token, kind.context_tokens) == (5 << 20, 4096, 2048)
    assert (kind.latency.load_bytes_per_s, kind.latency.kv_bytes_per_s) == (2.0**32, 2.0**31)
    assert any(line.startswith("one_link") for line in device.derived)
    assert device.one_link
    assert device.load_stall_bytes_per_s == 2.0**36
    write_constants(file, [constants()], replace(MACHINE, stall_s_per_byte=0.0))
    assert read_device(str(file)).load_stall_bytes_per_s == 0, "not at all"


def test_copies_that_hardly_slow_each_other_down_are_simulated_as_independent(tmp_path: Path) -> None:
    file = tmp_path / "constants.json"
    write_constants(file, [constants()], replace(MACHINE, side_by_side=1.2))
    assert not read_device(str(file)).one_link


def test_real_models_are_measured_and_simulated_with_what_came_out(
    tmp_path: Path, tiny_models: dict[str, Path]
) -> None:
    for name, directory in tiny_models.items():
        (tmp_path / name).symlink_to(directory)
    output = tmp_path / "constants.json"
    arguments = ["calibrate", "-f", str(QUICKSTART), "--models", str(tmp_path), "-o", str(output), "--rounds", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.output.count("R^2") == 16  # four fits of each model
    assert result.output.count("not measured: ") == 4
    written = json.loads(output.read_text("utf-8"))
    assert written["side_by_side"] > 0.5  # about 2 at most on one path
    assert [entry["model"] for entry in written["constants"]] == ["llama", "mistral", "qwen2", "qwen3"]
    assert all(entry["load_bytes_per_s"] > 1e8 for entry in written["constants"])
    assert all(0 < entry["floor"] < 10 for entry in written["constants"])
    assert len(core_config(SchedulerConfig(listen="unix:/x", models=(), constants=output)).constants) == 4
    asked = ["--rate", "1", "--models", "8", "--duration", "5", "--cap-input", "64", "--cap-output", "32"]
    simulated = CliRunner().invoke(main, ["simulate", "--device", str(output), "--unified", "2", *asked, "--json", "-"])
    assert simulated.exit_code == 0, simulated.output
    figures = json.loads(simulated.stdout)
    assert figures["requests"]["finished"] == figures["requests"]["offered"] > 0
    assert {model["kind"] for model in figures["models"].values()} == {"llama", "mistral", "qwen2", "qwen3"}
    assert figures["device"]["derived"] == written["derived"]


def test_a_model_that_cannot_be_measured_is_named(tmp_path: Path) -> None:
    (tmp_path / "llama").mkdir()
    result = CliRunner().invoke(main, ["calibrate", "-f", str(QUICKSTART), "--models", str(tmp_path), "--rounds", "1"])
    assert result.exit_code == 2
    assert "Error: model llama: " in result.output
