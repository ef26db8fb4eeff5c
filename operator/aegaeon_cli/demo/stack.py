"""A stack of real processes for the length of a `async with`, and proof that nothing of it stays behind.

It is started as a person would (`aegaeon up -f DIR`), with a run folder of its own, so that what is left after its
end can be told from other runs of this user.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from aegaeon_cli.demo.errors import StackError
from aegaeon_cli.demo.processes import Process, alive, descendants
from aegaeon_operator.errors import RunnerError
from aegaeon_operator.podrunner import RunState, find_run

START_S = 60.0
STOP_S = 20.0
_ENTRY = "from aegaeon_cli.main import main; main()"


class Stack:
    """`aegaeon up` as a child process. `leftovers` is filled when it has ended."""

    def __init__(self, manifests: Path, models: Path, port: int | None = None) -> None:
        self._arguments = ["up", "-v", "-f", str(manifests), "--models", str(models)]
        self._arguments += [] if port is None else ["--port", str(port)]
        self._home = Path(tempfile.mkdtemp(prefix="aegaeon-demo-"))
        self._child: asyncio.subprocess.Process | None = None
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

    async def __aenter__(self) -> Stack:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def pids(self) -> list[int]:
        """Of `aegaeon up` and every process below it, now."""
        return [process.pid for process in self._look()]

    def log(self) -> str:
        """What `aegaeon up` and its pods printed, during the run and after it."""
        path = self._home / "up.log"
        return path.read_text(errors="replace") if path.is_file() else self._last_log

    async def _start(self) -> None:
        environment = os.environ | {"XDG_RUNTIME_DIR": str(self._home), "PYTHONUNBUFFERED": "1"}
        with (self._home / "up.log").open("wb") as log:
            self._child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _ENTRY, *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
        try:
            async with asyncio.timeout(START_S):
                await self._ready(self._child)
        except TimeoutError:
            raise StackError(f"the stack was not ready after {START_S:.0f} s; it printed:\n{self.log()}") from None

    async def _ready(self, child: asyncio.subprocess.Process) -> None:
        while True:
            if child.returncode is not None:
                raise StackError(f"`aegaeon up` ended with status {child.returncode}; it printed:\n{self.log()}")
            try:
                self._state = find_run(self._base, None)
            except RunnerError:
                self._state = None  # not yet
            if self._state is not None and self._state.ready:
                self._look()
                return
            await asyncio.sleep(0.05)

    async def _stop(self) -> None:
        if self._child is not None:
            self._look()
            if self._child.returncode is None:
                self._child.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(self._child.wait(), STOP_S)
            except TimeoutError:
                self.leftovers.append(f"`aegaeon up` (pid {self._child.pid}) did not end within {STOP_S:.0f} s")
                self._kill()
                await self._child.wait()
        self.leftovers += self._find_leftovers()
        self._kill()
        self._last_log = self.log()
        shutil.rmtree(self._home, ignore_errors=True)

    @property
    def _base(self) -> Path:
        return self._home / "aegaeon"

    def _look(self) -> set[Process]:
        """Remember every process of the stack, so that those that outlive it are found."""
        now = descendants(self._child.pid) if self._child is not None else set()
        self._family |= now
        return now

    def _kill(self) -> None:
        for process in self._family:
            if alive(process):
                os.kill(process.pid, signal.SIGKILL)

    def _find_leftovers(self) -> list[str]:
        found = [f"process {process.pid} ({process.name}) still runs" for process in self._family if alive(process)]
        found += [f"{path} is left" for path in sorted(self._base.glob("*"))]
        if self._state is not None:
            run = Path(self._state.segments).name
            found += [f"{path} is left" for path in sorted(Path("/dev/shm").glob(f"*{run}*"))]
        return found
