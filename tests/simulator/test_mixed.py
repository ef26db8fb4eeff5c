"""GPUs of several makes in one pool: each at its own pace and with its own memory, and models where they fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from simulator.runs import GB, SLO, plain_device

from aegaeon_cli.main import main
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import Device, Kind, Machines, More, read_device
from aegaeon_simulator.errors import DeviceError
from aegaeon_simulator.run import Run, result, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival, Workload

BIG, SMALL = "qwen2_5_72b_tp4", "qwen2_5_7b"


def workload(
    kinds: tuple[str, ...], each: int = 4, length: int = 60, gap_s: float = 2.0, prompt: int = 100
) -> Workload:
    """In turn a request of each model, `gap_s` apart."""
    arrivals = tuple(Arrival(1.0 + gap_s * i, i % len(kinds), prompt, length) for i in range(each * len(kinds)))
    return Workload(kinds, arrivals)


def mixed(work: Workload, first: Device, *others: More, unified: int = 1, slo: Slo = SLO, policy: str = "slack") -> Run:
    return Run(Settings(policy, Split(unified=unified), slo), work, first, also=others)


def decode_s(run: Run) -> dict[str, float]:
    by = result(run, simulate(run))["gpu_seconds_by_device"]
    return {name: seconds["decode"] for name, seconds in by.items()}


@pytest.mark.parametrize("policy", ["slack", "paper"])
def test_a_model_that_fits_a_tensor_parallel_group_alone_is_served_beside_small_ones(policy: str) -> None:
    tp4 = read_device("h800-tp4")
    run = mixed(workload((BIG, SMALL)), read_device("h800-policy"), More(1, tp4), policy=policy)
    found = result(run, simulate(run))
    assert found["requests"]["finished"] == found["requests"]["offered"] == 8
    by = found["gpu_seconds_by_device"]
    assert by["h800-policy"]["decode"] > 0
    assert by["h800-tp4"]["decode"] >= 4 * 4 * 59 * tp4.kinds[BIG].latency.a  # four GPUs at every step
    assert sum(by["h800-tp4"].values()) == pytest.approx(4 * found["span_s"])


def test_weights_that_exceed_a_device_are_not_sent_there_though_it_has_constants_of_them() -> None:
    device = plain_device(step_s=0.02, prefill_s=0.1)
    small = replace(device, name="small", model_bytes=9 * GB)
    assert decode_s(mixed(workload(("plain",)), small, More(1, device)))["small"] == 0.0


def test_a_prompt_that_exceeds_a_device_beside_the_weights_goes_to_a_larger_one() -> None:
    device = plain_device(step_s=0.02, prefill_s=0.1)
    kinds = {"plain": replace(device.kinds["plain"], kv_bytes_per_token=1_000_000)}
    large = replace(device, kinds=kinds)
    small = replace(large, name="small", model_bytes=11 * GB)
    run = mixed(workload(("plain",), prompt=2000), small, More(1, large))
    assert simulate(run).attainment(SLO).token == 1.0
    assert decode_s(run)["small"] == 0.0


def test_both_accelerator_types_work_under_load() -> None:
    run = mixed(workload((SMALL,) * 8, gap_s=0.3), read_device("h800-policy"), More(4, read_device("a10")))
    assert min(decode_s(run).values()) > 0
    assert simulate(run).attainment(SLO).token == 1.0


def test_under_light_load_the_faster_accelerator_is_preferred() -> None:
    slow = replace(plain_device(step_s=0.08, prefill_s=0.5), name="slow")
    fast = replace(plain_device(step_s=0.01, prefill_s=0.1), name="fast")
    spent = decode_s(mixed(workload(("plain",) * 3), slow, More(1, fast)))
    assert spent["slow"] == 0.0 < spent["fast"]


def test_the_core_estimates_a_model_on_each_accelerator_separately() -> None:
    slow = replace(plain_device(step_s=0.3, prefill_s=0.5), name="slow")
    fast = replace(plain_device(step_s=0.01, prefill_s=0.1), name="fast")
    run = mixed(workload(("plain",) * 2, gap_s=1.0, length=150), slow, More(1, fast))
    assert simulate(run).attainment(SLO).token == 1.0  # on the slow one a token takes three times its TBT


def test_the_same_run_has_the_same_bytes() -> None:
    run = mixed(workload((SMALL,) * 6, gap_s=0.3), read_device("h800-policy"), More(2, read_device("a10")))
    first, again = (json.dumps(result(run, simulate(run))) for _ in range(2))
    assert first == again


def test_contradicting_files_are_reported() -> None:
    device = plain_device(step_s=0.02, prefill_s=0.1)
    with pytest.raises(DeviceError, match="two files have a device named"):
        Machines.of(device, [More(1, replace(device, model_bytes=GB))])
    other: dict[str, Kind] = {"plain": replace(device.kinds["plain"], weight_bytes=GB)}
    with pytest.raises(DeviceError, match="other sizes"):
        Machines.of(device, [More(1, replace(device, name="other", kinds=other))])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--also", "a10"), "not of the form N:NAME"),
        (("--also", "0:a10"), "not of the form N:NAME"),
        (("--also", "2:none"), "neither a readable file"),
        (("--also", "2:a10", "--policy", "serverlessllm"), "one make"),
        (("--also", "2:a10", "--prefill", "1", "--decode", "1"), "--unified"),
        (("--also", "2:a10", "--unified", "1", "--kind", BIG), "none of h800-policy, a10 has constants"),
    ],
)
def test_an_impossible_run_is_refused_in_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    given = ("simulate", "--rate", "0.1", "--models", "2", "--duration", "5", *arguments)
    found = CliRunner().invoke(main, given)
    assert (found.exit_code, message in found.output) == (2, True), found.output


def test_a_model_that_fits_no_device_of_the_pool_is_refused_at_the_start(tmp_path: Path) -> None:
    content = json.loads((Path(__file__).parents[2] / "operator/aegaeon_simulator/devices/h800-tp4.json").read_text())
    content["name"], content["gpu"]["model_bytes"] = "half", 72 * GB
    file = tmp_path / "half.json"
    file.write_text(json.dumps(content))
    given = ("simulate", "--rate", "0.1", "--models", "1", "--kind", BIG, "--unified", "1", "--also", f"1:{file}")
    found = CliRunner().invoke(main, given)
    assert found.exit_code == 2
    assert "fits no half" in found.output
