"""A stack of real processes for the length of a `with` or an `async with`, and a check that nothing of it remains.

It is started as by a person (`aegaeon up -f DIR`), with a run folder of its own, so that its leftovers can be
distinguished from other runs of this user. Demo, benchmarks and tests all launch it this way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from aegaeon_cli.demo.errors import StackError
from aegaeon_cli.demo.processes import Process, alive, command_line, descendants
from aegaeon_operator.errors import RunnerError
from aegaeon_operator.podrunner import RunState, find_run, tethered

START_S = 180.0  # engines that import vLLM take a minute on a busy machine
STOP_S = 20.0
_POLL_S = 0.05
_PORTS = range(15000, 32000)  # below net.ipv4.ip_local_port_range, 32768 unless it was changed
_ENTRY = "from aegaeon_cli.main import main; main()"


class Stack:
    """`aegaeon up` as a child process. `leftovers` and `exit_status` are filled when it has ended.

    `models`: folder for plain names in hostPath. `port`: of the API, instead of the manifest's. `record`: a file
    for the scheduler's event log. `more`: further arguments of `aegaeon up`. Entering raises StackError, with what was
    printed, when the stack does not come up.
    """

    def __init__(
        self,
        manifests: Path,
        models: Path | None = None,
        port: int | None = None,
        record: Path | None = None,
        more: Sequence[str] = (),
    ) -> None:
        self._arguments = ["up", "-v", "-f", str(manifests)]
        self._arguments += [] if models is None else ["--models", str(models)]
        self._arguments += [] if port is None else ["--port", str(port)]
        self._arguments += [] if record is None else ["--record", str(record)]
        self._arguments += more
        self._home = Path(tempfile.mkdtemp(prefix="aegaeon-stack-"))
        self._child: subprocess.Popen[bytes] | None = None
        self._state: RunState | None = None
        self._family: set[Process] = set()
        self._last_log = ""
        self.leftovers: list[str] = []

    @property
    def state(self) -> RunState:
        """URL, scheduler's target and folders of the running stack."""
        if self._state is None:
            raise StackError("the stack is not running")
        return self._state

    @property
    def run_folders(self) -> Path:
        """The folder in which `aegaeon top` and other commands find the run."""
        return self._home / "aegaeon"

    @property
    def exit_status(self) -> int | None:
        """The exit status of `aegaeon up`; None while it runs."""
        return None if self._child is None else self._child.poll()

    def pids(self) -> list[int]:
        """The current pids of `aegaeon up` and every process below it."""
        return [process.pid for process in self._look()]

    def pod(self, name: str) -> int:
        """Process id of a pod: the process whose command line names its config file. Raises StackError."""
        for process in self._look():
            if f"/{name}.json" in command_line(process.pid):
                return process.pid
        raise StackError(f"no process of pod {name} runs; the stack printed:\n{self.log()}")

    def kill(self, name: str) -> None:
        """kill -9 of a pod; `aegaeon up` starts it again. Raises StackError when there is no such process."""
        os.kill(self.pod(name), signal.SIGKILL)

    def stop(self) -> int | None:
        """Send Ctrl-C; returns the exit status of `aegaeon up`."""
        for _ in self._ending():
            time.sleep(_POLL_S)  # another process is watched
        return self.exit_status

    def log(self) -> str:
        """The output of `aegaeon up` and its pods, during the run and after it."""
        path = self._home / "up.log"
        return path.read_text(errors="replace") if path.is_file() else self._last_log

    def __enter__(self) -> Stack:
        try:
            for _ in self._starting():
                time.sleep(_POLL_S)  # another process is watched
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.stop()
        finally:
            self._clean()

    async def __aenter__(self) -> Stack:
        try:
            for _ in self._starting():
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            for _ in self._ending():
                await asyncio.sleep(_POLL_S)
        finally:
            self._clean()

    def _starting(self) -> Iterator[None]:
        """Start the stack; yields while it is not ready."""
        self._child = self._launch()
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            if self._child.poll() is not None:
                raise StackError(f"`aegaeon up` ended with status {self._child.returncode}; it printed:\n{self.log()}")
            if time.monotonic() > deadline:
                raise StackError(f"the stack was not ready after {START_S:.0f} s; it printed:\n{self.log()}")
            yield
        self._look()

    def _launch(self) -> subprocess.Popen[bytes]:
        environment = os.environ | {"XDG_RUNTIME_DIR": str(self._home), "PYTHONUNBUFFERED": "1"}
        with (self._home / "up.log").open("wb") as log:
            return subprocess.Popen(
                tethered([sys.executable, "-c", _ENTRY, *self._arguments]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )

    def _is_ready(self) -> bool:
        try:
            self._state = find_run(self.run_folders, None)
        except RunnerError:
            return False  # not yet
        return self._state.ready

    def _ending(self) -> Iterator[None]:
        """Send Ctrl-C; yields until the stack has ended. Kills processes that do not end in time."""
        if self._child is None or self._child.poll() is not None:
            return
        self._look()
        self._child.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_S
        while self._child.poll() is None:
            if time.monotonic() > deadline:
                self.leftovers.append(f"`aegaeon up` (pid {self._child.pid}) did not end within {STOP_S:.0f} s")
                self._kill()
                self._child.wait()
            yield

    def _clean(self) -> None:
        self.leftovers += self._find_leftovers()
        self._kill()
        self._last_log = self.log()
        shutil.rmtree(self._home, ignore_errors=True)

    def _look(self) -> set[Process]:
        """Record every process of the stack, so that those that outlive it are detected."""
        now = descendants(self._child.pid) if self._child is not None else set()
        self._family |= now
        return now

    def _kill(self) -> None:
        for process in self._family:
            if alive(process):
                os.kill(process.pid, signal.SIGKILL)

    def _find_leftovers(self) -> list[str]:
        leftovers = [f"process {process.pid} ({process.name}) still runs" for process in self._family if alive(process)]
        leftovers += [f"{path} is left" for path in sorted(self.run_folders.glob("*"))]
        if self._state is not None:
            leftovers += [
                f"{path} is left" for path in (Path(self._state.segments), self._state.sockets) if path.exists()
            ]
        return leftovers


def free_port() -> int:
    """A free port of the loopback interface outside the range that the kernel assigns to clients, which could take it
    before it is bound. Raises StackError when there is none."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise StackError(f"no port between {_PORTS.start} and {_PORTS.stop} is free; end programs that listen on them")
