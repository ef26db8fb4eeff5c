"""What the machine lacks is said before anything starts; runs are found and swept."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aegaeon_operator.errors import PreflightError, RunnerError
from aegaeon_operator.podrunner import RunFolder, RunState, find_run, look, node_folder, preflight, runs_of, sweep_node
from aegaeon_operator.podrunner.preflight import Machine
from aegaeon_operator.podrunner.runfolder import sweep
from aegaeon_operator.reconcile import LocalSettings
from aegaeon_operator.spec import Pool, load_manifests
from aegaeon_operator.spec.overhead import outside_bytes

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
AMPLE = Machine(Path("/dev/shm"), 1 << 40, 1 << 40)


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    """The quickstart, with folders for its models."""
    (pool,) = load_manifests(QUICKSTART, tmp_path).pools
    for model in pool.models:
        (tmp_path / model.name).mkdir()
    return pool


@pytest.fixture
def settings() -> LocalSettings:
    """With a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return LocalSettings(run_folder=Path("/r"), sockets=Path("/k"), segments=Path("/s"), python="python3", port=port)


def complaint(pool: Pool, settings: LocalSettings, machine: Machine) -> str:
    with pytest.raises(PreflightError) as raised:
        preflight(pool, settings, machine)
    (sentence,) = raised.value.problems
    return sentence


def test_a_python_without_vllm_is_named_before_anything_starts(
    pool: Pool, settings: LocalSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: dict[str, object] = {"torch": object()}
    monkeypatch.setattr(sys.modules[preflight.__module__], "find_spec", installed.get)
    preflight(pool, settings, AMPLE)
    spec = pool.gpu_pool.spec.model_copy(update={"backend": "vllm"})
    asked = replace(pool, gpu_pool=pool.gpu_pool.model_copy(update={"spec": spec}))
    said = complaint(asked, settings, AMPLE)
    assert f"backend is vllm, but {sys.executable} has no package vllm" in said
    assert "make setup-vllm" in said
    assert ".venv-vllm/bin/aegaeon" in said
    installed.clear()
    assert "backend is torch, but" in complaint(pool, settings, AMPLE)


def test_a_missing_gpu_is_named_before_anything_starts(pool: Pool, settings: LocalSettings) -> None:
    accelerator = pool.gpu_pool.spec.accelerator.model_copy(update={"device": "cuda:99"})
    spec = pool.gpu_pool.spec.model_copy(update={"accelerator": accelerator})
    elsewhere = replace(pool, gpu_pool=pool.gpu_pool.model_copy(update={"spec": spec}))
    with pytest.raises(PreflightError, match="cuda:99 cannot be used") as refused:
        preflight(elsewhere, settings, AMPLE)
    assert "use device cpu" in str(refused.value)


def test_every_gpu_of_an_engine_is_looked_for_and_the_memory_of_each_on_a_cpu_counts(
    pool: Pool, settings: LocalSettings
) -> None:
    def shared(**accelerator: object) -> Pool:
        made = pool.gpu_pool.spec.accelerator.model_copy(update={"count": 2, **accelerator})
        spec = pool.gpu_pool.spec.model_copy(update={"accelerator": made})
        return replace(pool, gpu_pool=pool.gpu_pool.model_copy(update={"spec": spec}))

    with pytest.raises(PreflightError) as refused:
        preflight(shared(device="cuda:90"), settings, AMPLE)
    assert [problem.split(" cannot")[0][-7:] for problem in refused.value.problems] == [
        "cuda:90", "cuda:91", "cuda:92", "cuda:93",
    ]  # fmt: skip
    memory = pool.gpu_pool.spec.memory
    beside = outside_bytes(pool.gpu_pool.spec)
    needed = 2 * (memory.host_kv + beside) + memory.host_model_cache + 4 * (memory.device_bytes or 0)
    preflight(shared(), settings, Machine(Path("/dev/shm"), 1 << 40, needed))
    assert f"needs {needed >> 20}Mi for 2 engines" in complaint(
        shared(), settings, Machine(Path("/dev/shm"), 1 << 40, needed - 1)
    )


def test_a_machine_with_everything_passes(pool: Pool, settings: LocalSettings) -> None:
    preflight(pool, settings, AMPLE)


def test_a_port_in_use_is_reported_with_the_remedy(pool: Pool, settings: LocalSettings) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert complaint(pool, replace(settings, port=port), AMPLE) == (
            f"port {port} on 127.0.0.1 cannot be used (Address already in use); choose another port with --port"
        )


def test_too_little_shared_memory_is_reported_with_both_numbers(pool: Pool, settings: LocalSettings) -> None:
    memory = pool.gpu_pool.spec.memory
    needed = 2 * memory.host_kv + memory.host_model_cache
    preflight(pool, settings, Machine(Path("/dev/shm"), needed, 1 << 40))
    sentence = complaint(pool, settings, Machine(Path("/dev/shm"), 4 << 20, 1 << 40))
    assert sentence.startswith(f"/dev/shm has 4Mi free, but GpuPool quickstart needs {needed >> 20}Mi there")
    assert "lower spec.memory.hostKv or spec.memory.hostModelCache" in sentence


def test_device_memory_of_a_cpu_and_what_lies_beside_it_count_as_memory_of_the_machine(
    pool: Pool, settings: LocalSettings
) -> None:
    memory = pool.gpu_pool.spec.memory
    each = memory.host_kv + (memory.device_bytes or 0) + outside_bytes(pool.gpu_pool.spec)
    needed = 2 * each + memory.host_model_cache
    preflight(pool, settings, Machine(Path("/dev/shm"), 1 << 40, needed))
    sentence = complaint(pool, settings, Machine(Path("/dev/shm"), 1 << 40, needed - 1))
    assert f"but GpuPool quickstart needs {needed >> 20}Mi for 2 engines" in sentence


def test_a_model_folder_that_does_not_exist_is_named(pool: Pool, settings: LocalSettings, tmp_path: Path) -> None:
    (tmp_path / "qwen2").rmdir()
    sentence = complaint(pool, settings, AMPLE)
    assert sentence.startswith(f"model qwen2: folder {tmp_path}/qwen2 does not exist; create the quickstart's models")


def test_all_that_is_lacking_is_reported_at_once(pool: Pool, settings: LocalSettings, tmp_path: Path) -> None:
    (tmp_path / "llama").rmdir()
    with pytest.raises(PreflightError) as raised:
        preflight(pool, settings, Machine(Path("/dev/shm"), 0, 0))
    assert len(raised.value.problems) == 3


def test_this_machine_can_be_measured() -> None:
    machine = look(Path("/dev/shm"))
    assert machine.shared_memory_free > 0
    assert machine.memory_free > 0


STATE = RunState("q", 1, "http://127.0.0.1:8000", "unix:/x", "unix:/y", "/dev/shm/x")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shm"
    path.mkdir()
    return path


def test_a_run_is_found_while_it_is_alive_and_leaves_nothing(tmp_path: Path, shared: Path) -> None:
    base = tmp_path / "runs"
    run = RunFolder.create(base, shared, "q")
    run.publish(STATE)
    (run.segments / "kv").write_bytes(b"x")
    assert find_run(base, None) == replace(STATE, folder=run.path)
    assert find_run(base, run.path) == replace(STATE, folder=run.path)
    assert sweep(base) == []
    run.remove()
    run.remove()
    assert not base.exists()
    assert list(shared.iterdir()) == []
    with pytest.raises(RunnerError, match="no run found in"):
        find_run(base, None)


def test_of_several_runs_one_has_to_be_chosen(tmp_path: Path, shared: Path) -> None:
    runs = [RunFolder.create(tmp_path / "runs", shared, "q") for _ in range(2)]
    for run in runs:
        run.publish(STATE)
    with pytest.raises(RunnerError, match="there are several runs; choose one with --run"):
        find_run(tmp_path / "runs", None)
    for run in runs:
        run.remove()


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="is not the folder of a run"):
        find_run(tmp_path, tmp_path)


def test_a_port_of_metrics_in_use_names_its_field(pool: Pool, settings: LocalSettings) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        scheduling = pool.gpu_pool.spec.scheduling.model_copy(update={"metrics_port": other.getsockname()[1]})
        spec = pool.gpu_pool.spec.model_copy(update={"scheduling": scheduling})
        busy = replace(pool, gpu_pool=pool.gpu_pool.model_copy(update={"spec": spec}))
        assert complaint(busy, settings, AMPLE).endswith("choose another port with spec.scheduling.metricsPort")


def test_orphaned_segments_are_removed_even_without_the_rest_of_their_run(tmp_path: Path, shared: Path) -> None:
    base, node = tmp_path / "runs", node_folder(shared)
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom aegaeon_operator.podrunner import RunFolder\n"
        "run = RunFolder.create(Path(sys.argv[1]), Path(sys.argv[2]), 'dead')\n"
        "(run.segments / 'a@1.kv').write_bytes(b'x')\nprint(run.path, run.segments, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, str(base), str(shared)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.split()
    shutil.rmtree(said[0])  # the run's own folder goes with it
    assert [(str(run.path), run.alive) for run in runs_of(node)] == [(said[1], False)]
    alive = RunFolder.create(base, shared, "q")
    assert [(run.path, run.alive, run.pids) for run in runs_of(node)] == [(alive.segments, True, (os.getpid(),))]
    assert sweep_node(node) == []
    alive.remove()
    assert list(shared.iterdir()) == []
    assert runs_of(node) == []
