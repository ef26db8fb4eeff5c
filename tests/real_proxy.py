"""A proxy as companies have them: Debian's tinyproxy, in a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

START_S = 20.0
USER, PASSWORD = "alice", "correct-horse"


@dataclass(frozen=True)
class RealProxy:
    """`url`: without who uses it."""

    url: str
    log: Path

    def asked(self, method: str, server: str) -> bool:
        """Whether a request for this server came by."""
        return any(f"{method} " in line and server in line for line in self.log.read_text("utf-8").splitlines())


def through_proxy(address: str) -> str:
    """The same server by an address that reaches this machine and is not of the loopback interface, for which no client
    uses a proxy."""
    return address.replace("127.0.0.1", "0.0.0.0")


@contextmanager
def real_proxy(folder: Path, *, guarded: bool = False) -> Iterator[RealProxy]:
    """On a free port; `guarded`: for USER with PASSWORD alone."""
    program = shutil.which("tinyproxy")
    if program is None:
        pytest.skip("needs a proxy: as root, apt-get install tinyproxy-bin")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log, settings = folder / "proxy.log", folder / "tinyproxy.conf"
    lines = [f"Port {port}", "Listen 127.0.0.1", "Allow 127.0.0.1", f'LogFile "{log}"', "LogLevel Info"]
    settings.write_text("\n".join([*lines, *([f"BasicAuth {USER} {PASSWORD}"] if guarded else [])]) + "\n", "utf-8")
    with subprocess.Popen([program, "-d", "-c", str(settings)], stdout=subprocess.DEVNULL) as child:
        try:
            _until_open(port, child)
            yield RealProxy(f"http://127.0.0.1:{port}", log)
        finally:
            child.terminate()


def _until_open(port: int, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while child.poll() is None and time.monotonic() < end:
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)  # another process is watched
    raise AssertionError("tinyproxy does not listen")
