"""Real child processes that stand for pods: small Python programs, each with a socket to be probed on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aegaeon_operator.podrunner import RunFolder
from aegaeon_operator.reconcile import DesiredPod, PodRole, SocketProbe

# Listens, says when it is asked to end, and ends; `crash` makes it die so many times first (counted in a file).
_PROGRAM = """
import json, os, pathlib, signal, socket, sys, time
config = json.loads(pathlib.Path(sys.argv[1]).read_text())
tries = pathlib.Path(config["tries"])
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
print("hello from", config["name"], flush=True)
if len(tries.read_text()) <= config["crash"]:
    sys.exit(7)
journal = open(config["journal"], "a")
def end(*_):
    journal.write("asked " + config["name"] + "\\n"); journal.flush()
    time.sleep(config["linger"])
    journal.write("ended " + config["name"] + "\\n"); journal.flush()
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if config["deaf"] else end)
pathlib.Path(config["socket"]).unlink(missing_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(config["socket"])
listener.listen()
while True:
    listener.accept()[0].close()
"""


@pytest.fixture
def make_pod(tmp_path: Path, sockets: Path) -> Callable[..., DesiredPod]:
    """make_pod(name, role, crash=0, linger=0.0, deaf=False, depends=()) -> a pod of this machine."""

    def make(
        name: str,
        role: PodRole = PodRole.SIDECAR,
        *,
        crash: int = 0,
        linger: float = 0.0,
        deaf: bool = False,
        depends: tuple[str, ...] = (),
    ) -> DesiredPod:
        address = sockets / f"{name}.sock"
        config: dict[str, object] = {
            "name": name,
            "tries": str(tmp_path / f"{name}.tries"),
            "journal": str(tmp_path / "journal"),
            "socket": str(address),
            "crash": crash,
            "linger": linger,
            "deaf": deaf,
        }
        file = tmp_path / f"{name}.json"
        argv = (sys.executable, "-I", "-S", "-c", _PROGRAM, str(file))
        return DesiredPod(name, role, argv, config, file, SocketProbe(address), depends)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    segments = tmp_path / "shm"
    segments.mkdir()
    run = RunFolder.create(tmp_path / "runs", segments, "pool")
    yield run
    run.remove()
