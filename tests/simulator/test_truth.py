"""What `benchmarks.truth` runs beside the simulator: the pace of the real engines, and models of its own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
import yaml
from benchmarks.truth_cases import CASES, PACED
from benchmarks.truth_machine import UNEVEN, Machine, as_run, between, through_the_stack, uneven
from benchmarks.truth_stack import (
    PROBE_BATCH,
    PROBE_PROMPT,
    PROBE_TOKENS,
    Alone,
    moves,
    write_manifests,
    write_models,
)
from safetensors.torch import load_file, save_file

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import CommandId, InstanceId, Memory, ModelName, Slo
from aegaeon_simulator.devices import read_device


def test_the_pace_is_of_the_functions_that_launch_steps_and_bring_weights() -> None:
    check = (
        "from aegaeon_sidecar.backends.torch.backend import TorchBackend\n"
        "from aegaeon_sidecar.engine.switch import Switch\n"
        "print(TorchBackend.launch.__code__.co_filename, Switch._bring.__code__.co_filename, sep='\\n')"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PACED), *sys.path])}
    done = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=True)
    assert [Path(file).parent.name for file in done.stdout.splitlines()] == ["paced", "paced"]


def test_copies_of_a_model_have_other_weights_of_the_same_size(tmp_path: Path) -> None:
    made = tmp_path / "made"
    (made / "llama").mkdir(parents=True)
    tensors = {"model.norm.weight": torch.ones(8), "model.embed.weight": torch.ones(4, 8)}
    save_file(tensors, made / "llama" / "model.safetensors", {"format": "pt"})
    folder = write_models(made, tmp_path / "copies", 3)
    files = [folder / name / "model.safetensors" for name in ("llama", "llama-1", "llama-2")]
    assert len({file.read_bytes() for file in files}) == 3
    assert len({file.stat().st_size for file in files}) == 1
    assert all(torch.equal(load_file(file)["model.embed.weight"], torch.ones(4, 8)) for file in files)
    assert write_models(made, tmp_path / "other", 1) == made


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_as_many_models_and_engines_as_it_says(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write_manifests(tmp_path, case.policy, Slo(1.0, 0.0123), case.engines, case.copies)
    spec = yaml.safe_load((tmp_path / "gpupool.yaml").read_text())["spec"]
    models = yaml.safe_load((tmp_path / "modelpool.yaml").read_text())["spec"]["models"]
    engines = sum(spec.get(role, {}).get("replicas", 0) for role in ("prefill", "decode", "engines"))
    assert engines == case.split.total
    assert len({model["name"] for model in models}) == len(models) == 4 * case.copies
    assert {model["slo"]["tbt"] for model in models} == {"12.3ms"}


def test_moves_are_counted_by_the_commands_of_the_event_log(tmp_path: Path) -> None:
    log = tmp_path / "events.log"
    log.write_text('{"commands":[{"_":"Send","body":{"_":"Adopt"}},{"_":"Send","body":{"_":"Load"}}]}\n')
    assert moves(log) == {"Adopt": 1, "SwapOut": 0, "Load": 1}
    assert not any(moves(tmp_path / "none.log").values())


def _machine() -> Machine:
    device = read_device("h800-policy")
    alone = {name: Alone(0.2, 0.015, 0.022) for name in device.kinds}
    return through_the_stack(device, alone)


def test_a_step_takes_what_it_took_through_the_stack() -> None:
    for kind in _machine().device.kinds.values():
        context = PROBE_PROMPT + 3 * PROBE_TOKENS // 4
        k = kind.latency
        assert k.a + k.b * context + k.c == pytest.approx(0.015)
        assert k.a + PROBE_BATCH * (k.b * context + k.c) == pytest.approx(0.022)


def test_what_is_probed_around_a_run_counts_by_its_mean() -> None:
    found = between({"llama": Alone(0.2, 0.015, 0.02)}, {"llama": Alone(0.3, 0.017, 0.03)})
    assert astuple(found["llama"]) == pytest.approx((0.25, 0.016, 0.025))


def test_steps_and_prompts_are_as_long_as_engines_reported_them_in_the_run() -> None:
    machine = _machine()
    name = next(iter(machine.device.kinds))
    k = machine.device.kinds[name].latency
    here, ids = InstanceId("engine-0"), iter(range(1, 100))
    log: list[tuple[float, ev.Event, list[cmd.Command]]] = []

    def report(batch: int, steps: int, decode_s: float, prompt: int = 0, prefill_s: float = 0.0) -> None:
        turn = CommandId(next(ids))
        send = cmd.Send(here, turn, cmd.Turn(ModelName(name), (), (), steps, 0), (), "")
        memory = Memory(0, 0, 0, 0)
        done = ev.TurnProgress(
            here, turn, (), steps, decode_s, prompt, prefill_s, 0.0, batch, 100 * batch, memory, end=True
        )
        log.extend([(0.0, ev.Tick(), [send]), (0.0, done, [])])

    for batch in (1, 2, 5):
        report(batch, 8, 8 * (0.02 + 0.003 * batch + k.b * 100 * batch))
    expected = max(k.floor, k.p0 + k.p1 * 500 + k.p2 * 500**2)
    report(1, 0, 0.0, 500, 1.25 * expected)

    seen = as_run(machine, log).device.kinds[name].latency
    assert (seen.a, seen.c) == pytest.approx((0.02, 0.003))
    assert max(seen.floor, seen.p0 + seen.p1 * 500 + seen.p2 * 500**2) == pytest.approx(1.25 * expected)
    assert as_run(machine, []) == machine


def test_steps_are_drawn_anew_within_what_probes_differ_by() -> None:
    machine, chosen = _machine(), random.Random(0)
    draws = [uneven(machine, chosen) for _ in range(20)]
    for name, kind in machine.device.kinds.items():
        shares = [draw.device.kinds[name].latency.a / kind.latency.a for draw in draws]
        assert len(set(shares)) == len(shares)
        assert all(abs(share - 1.0) <= UNEVEN for share in shares)
