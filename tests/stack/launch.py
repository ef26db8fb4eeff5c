"""The whole stack as a user starts it: `aegaeon up` on manifests of tiny random models, in real processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from aegaeon_operator.podrunner import RunState, find_run

START_S = 60.0
CONTEXT = 2048


@dataclass
class Stack:
    """A running `aegaeon up`."""

    process: subprocess.Popen[bytes]
    state: RunState
    base: Path

    @property
    def api(self) -> str:
        return f"{self.state.url}/v1"

    def pod(self, name: str) -> int:
        """Process id of the pod: the child whose command line names its config file."""
        for child in children(self.process.pid):
            if f"/{name}.json" in command_line(child):
                return child
        raise LookupError(f"no process of pod {name} below {self.process.pid}")

    def kill(self, name: str) -> None:
        """kill -9 of a pod."""
        os.kill(self.pod(name), signal.SIGKILL)

    def stop(self, timeout_s: float = 30.0) -> int:
        """Ctrl-C, as a person would; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout_s)


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    lists = [(task / "children").read_text() for task in tasks.iterdir()] if tasks.exists() else []
    return [int(child) for text in lists for child in text.split()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def manifests(models: dict[str, Path], *, prefill: int, decode: int, engines: int = 0, device: str = "16Mi") -> str:
    """A GpuPool and a ModelPool for these model directories."""
    roles: dict[str, Any] = {"engines": {"replicas": engines}} if engines else {}
    if prefill:
        roles |= {"prefill": {"replicas": prefill}, "decode": {"replicas": decode}}
    memory = {"deviceBytes": device, "slabSize": "64Ki", "hostModelCache": "64Mi", "hostKv": "32Mi"}
    pool = {
        **_head("GpuPool"),
        "spec": {**roles, "memory": memory, "scheduling": {"qMax": "200ms"}},
    }
    served = [
        {"name": name, "source": {"hostPath": str(path)}, "slo": {"ttft": "5s", "tbt": "200ms"}}
        for name, path in models.items()
    ]
    models_pool = {**_head("ModelPool"), "spec": {"gpuPoolRef": {"name": "test"}, "models": served}}
    return yaml.safe_dump_all([pool, models_pool])


def _head(kind: str) -> dict[str, Any]:
    return {"apiVersion": "serving.aegaeon.io/v1alpha1", "kind": kind, "metadata": {"name": "test"}}


@contextmanager
def running(text: str, *options: str) -> Iterator[Stack]:
    """Start, wait until every model has settled, and in any case leave nothing behind."""
    base = Path(tempfile.mkdtemp(prefix="aeg-"))
    (base / "manifests").mkdir()
    (base / "manifests" / "pool.yaml").write_text(text)
    environment = {**os.environ, "TMPDIR": str(base), "XDG_RUNTIME_DIR": "", "OMP_NUM_THREADS": "1"}
    command = [
        str(Path(sys.executable).with_name("aegaeon")),
        "up",
        "-f",
        str(base / "manifests"),
        "--port",
        str(free_port()),
    ]
    log = (base / "up.log").open("wb")
    process = subprocess.Popen([*command, *options, "-v"], env=environment, stdout=log, stderr=log)
    try:
        yield Stack(process, _ready(process, base), base)
    finally:
        _end(process)
        log.close()
        shutil.rmtree(base, ignore_errors=True)


def _ready(process: subprocess.Popen[bytes], base: Path) -> RunState:
    deadline = time.monotonic() + START_S
    runs = base / f"aegaeon-{os.getuid()}"
    while time.monotonic() < deadline and process.poll() is None:
        if list(runs.glob("*/run.json")):
            state = find_run(runs, None)
            if state.ready:
                return state
        time.sleep(0.05)  # polls a process that another program starts
    raise AssertionError(f"the stack did not come up:\n{(base / 'up.log').read_text()[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
