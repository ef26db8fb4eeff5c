"""The command line: help at once, errors as sentences with exit status 2, never a traceback."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from aegaeon_cli.doctor import examine, huge_pages, lost_devices
from aegaeon_cli.findings import Verdict
from aegaeon_cli.main import main
from aegaeon_native import NativeError
from aegaeon_sidecar.memory.lost_devices import LostDevices

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
COMMANDS = ("demo", "up", "top", "models", "doctor", "calibrate", "replay")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.output


@pytest.fixture
def model_folders(tmp_path: Path) -> Path:
    """Empty folders for the models of the quickstart: enough for what is checked before anything starts."""
    for name in ("llama", "mistral", "qwen2", "qwen3"):
        (tmp_path / "models" / name).mkdir(parents=True)
    return tmp_path / "models"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_help_lists_every_command_and_imports_none() -> None:
    code, output = run("--help")
    assert code == 0
    assert all(f"\n  {name} " in output for name in COMMANDS)
    script = "import sys; sys.argv = ['aegaeon', '--help']\nfrom aegaeon_cli.main import main\ntry: main()\nfinally: "
    script += "print([m for m in ('torch', 'grpc', 'pydantic', 'rich', 'transformers') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.endswith("[]\n")


def test_help_answers_at_once() -> None:
    """Seconds of processor, which other work does not lengthen much."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "aegaeon_cli", "--help"], capture_output=True, check=True, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.5


@pytest.mark.parametrize("arguments", [(name,) for name in COMMANDS] + [("models", "make")])
def test_every_command_explains_itself_with_an_example(arguments: tuple[str, ...]) -> None:
    code, output = run(*arguments, "--help")
    assert code == 0
    assert arguments == ("models",) or f"Example:\n    aegaeon {' '.join(arguments)}" in output


def test_an_unknown_command_is_exit_status_2() -> None:
    code, output = run("down")
    assert code == 2
    assert "No such command 'down'" in output


def test_a_port_in_use_is_reported_before_anything_starts(model_folders: Path, taken_port: int) -> None:
    code, output = run("up", "-f", str(QUICKSTART), "--models", str(model_folders), "--port", str(taken_port))
    assert code == 2
    sentence = (
        f"port {taken_port} on 127.0.0.1 cannot be used (Address already in use); choose another port with --port"
    )
    assert output == f"Error: {sentence}\n"


def test_too_little_shared_memory_is_reported_before_anything_starts(model_folders: Path, tmp_path: Path) -> None:
    for file in QUICKSTART.iterdir():
        (tmp_path / file.name).write_text(file.read_text("utf-8").replace("hostKv: 12Mi", "hostKv: 900Ti"), "utf-8")
    code, output = run("up", "-f", str(tmp_path), "--models", str(model_folders))
    assert code == 2
    assert "Error: /dev/shm has " in output
    assert "lower spec.memory.hostKv" in output


def test_missing_models_are_named_with_the_command_that_makes_them(tmp_path: Path) -> None:
    code, output = run("up", "-f", str(QUICKSTART), "--models", str(tmp_path))
    assert code == 2
    assert f"qwen3: folder {tmp_path}/qwen3 does not exist; create the quickstart's models" in output


def test_a_wrong_manifest_is_named_with_file_and_field(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text("kind: GpuPool\n", "utf-8")
    code, output = run("up", "-f", str(tmp_path))
    assert code == 2
    assert f"{tmp_path}/pool.yaml: document 1 (GpuPool without a name): spec: is required" in output


def test_a_record_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    code, output = run("up", "-f", str(QUICKSTART), "--record", str(tmp_path / "gone" / "log"))
    assert code == 2
    assert f"folder {tmp_path}/gone does not exist; create it first" in output


def test_two_gpu_pools_in_one_folder_are_refused(tmp_path: Path) -> None:
    for name in ("quickstart", "second"):
        for file in QUICKSTART.iterdir():
            text = file.read_text("utf-8").replace("name: quickstart", f"name: {name}")
            (tmp_path / f"{name}-{file.name}").write_text(text, "utf-8")
    code, output = run("up", "-f", str(tmp_path))
    assert code == 2
    assert "has 2 GpuPools (quickstart, second)" in output


@pytest.fixture
def runs() -> Iterator[Path]:
    """Where `up` puts its run: a folder with a path short enough for sockets below it."""
    with tempfile.TemporaryDirectory(prefix="aegaeon-cli-") as made:
        yield Path(made)


@pytest.fixture
def up(model_folders: Path, runs: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """up(*options) starts the quickstart as a process of its own, with its run below `runs`."""
    started: list[subprocess.Popen[str]] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])

    def start(*options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aegaeon_cli", "up", "-f", str(QUICKSTART), "--models", str(model_folders)]
        environment = {**os.environ, "XDG_RUNTIME_DIR": "", "TMPDIR": str(runs)}
        process = subprocess.Popen(
            [*command, "--port", port, *options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def left_behind(runs: Path, run_name: str) -> list[Path]:
    """What a run below `runs` left: folders, and segments in shared memory."""
    return [*runs.glob("aegaeon-*"), *Path("/dev/shm").glob(f"aegaeon-*/{run_name}")]


def test_up_leaves_nothing_when_a_pod_cannot_start(
    up: Callable[..., subprocess.Popen[str]], runs: Path, tmp_path: Path
) -> None:
    constants = tmp_path / "constants.json"
    constants.write_text("{}", "utf-8")  # the scheduler refuses it
    process = up("--constants", str(constants))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert "Error: pod scheduler refused its configuration;" in errors
    assert "Traceback" not in errors
    assert left_behind(runs, Path(output.split()[-2]).name) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_can_be_stopped_while_it_starts(
    up: Callable[..., subprocess.Popen[str]], runs: Path, number: signal.Signals
) -> None:
    process = up()
    assert process.stdout is not None
    started = process.stdout.readline()
    assert started.startswith("starting pool quickstart in ")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert left_behind(runs, Path(started.split()[-2]).name) == []


def test_doctor_checks_everything_that_is_needed() -> None:
    found = {finding.what: finding for finding in examine()}
    assert {"python", "cores", "memory", "/dev/shm", "packages", "native core", "processor", "torch", "gpu"} <= set(
        found
    )
    assert all(finding.remedy for finding in found.values() if finding.verdict is not Verdict.GOOD)
    code, output = run("doctor")
    assert code == any(finding.verdict is Verdict.MISSING for finding in found.values())
    assert "/dev/shm" in output


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("always within_size advise [never] deny force\n", "at least ten times faster"),
        ("always within_size [advise] never deny force\n", ""),
    ],
)
def test_doctor_explains_how_to_enable_huge_pages(tmp_path: Path, setting: str, word: str) -> None:
    (tmp_path / "shmem_enabled").write_text(setting)
    (found,) = huge_pages(tmp_path / "shmem_enabled")
    assert (found.verdict is Verdict.NOTE) == bool(word)
    assert word in found.remedy
    assert list(huge_pages(tmp_path / "of-another-kernel")) == []


def test_doctor_names_gpus_that_engines_of_this_machine_leave_alone(tmp_path: Path) -> None:
    folder = tmp_path / "aegaeon" / "team.pool"
    folder.mkdir(parents=True)
    assert list(lost_devices(tmp_path)) == []
    for _ in range(2):
        LostDevices(folder, ["5f1c"], time.time).note(NativeError("cuMemMap: (CUDA error 719)"))
    (finding,) = lost_devices(tmp_path)
    assert (finding.verdict, finding.what) == (Verdict.NOTE, "suspect gpu")
    assert finding.text == "GPU 5f1c was lost 2 times, the last time with: cuMemMap: (CUDA error 719)"
    assert str(folder / "5f1c.lost") in finding.remedy


def test_doctor_shows_where_models_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert f"none in {tmp_path}/aegaeon/models" in run("doctor")[1]
    (tmp_path / "aegaeon" / "models" / "llama").mkdir(parents=True)
    (tmp_path / "aegaeon" / "models" / "llama" / "config.json").write_text("{}", "utf-8")
    assert f"llama in {tmp_path}/aegaeon/models" in run("doctor")[1]
