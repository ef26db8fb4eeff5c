"""A pod as a child process: started, restarted with backoff, stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Protocol

from aegaeon_operator.reconcile import DesiredPod

_log = logging.getLogger(__name__)

_PARENT_DEATH = Path(__file__).with_name("parent_death.py")
_LAST_LINES = 12
_MISCONFIGURED = 2  # the exit status of Aegaeon's processes for an invalid configuration
_TICKS = os.sysconf("SC_CLK_TCK")
_OUTPUT_CLOSES_S = 1.0
_LONGEST_LINE = 65536
_LOG_BYTES = 8 << 20  # of a log file; one rotated file is kept


def tethered(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of a child that is killed when this process dies, for whatever reason."""
    return (sys.executable, "-I", "-S", str(_PARENT_DEATH), str(os.getpid()), *command)


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Backoff and timeouts. A pause starts at `first_s`, doubles to `longest_s`, and resets after `reset_after_s`."""

    first_s: float = 0.1
    longest_s: float = 5.0
    reset_after_s: float = 10.0
    grace_s: float = 15.0  # from SIGTERM to SIGKILL; gateways let open streams end meanwhile
    start_timeout_s: float = 120.0  # without readiness and without CPU use
    progress_every_s: float = 10.0  # between messages about a pod that is not ready
    early_deaths: int = 3  # exits before the first readiness after which the start has failed


class Reporter(Protocol):
    """The observer of pods: the console."""

    def output(self, pod: str, line: str) -> None:
        """Receive a line of the pod's output."""

    def event(self, pod: str, text: str) -> None:
        """Receive an event of the pod for the user."""


class Child:
    """The owner of a pod's process."""

    def __init__(self, pod: DesiredPod, policy: RestartPolicy, log_file: Path, reporter: Reporter) -> None:
        self.pod = pod
        self.deaths = 0
        self.misconfigured = False
        self.last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._policy = policy
        self._log_file = log_file
        self._reporter = reporter
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Id of the running process; None while there is none."""
        return self._process.pid if self._process else None

    @property
    def computed_s(self) -> float:
        """CPU seconds of the running process with all threads; 0 while there is none."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def started(self) -> bool:
        """True from `start` on: the process is kept running."""
        return self._task is not None

    def start(self) -> None:
        """Start the process and keep it running."""
        self._task = asyncio.create_task(self._supervise(), name=f"pod {self.pod.name}")

    async def stop(self) -> None:
        """Stop the process with SIGTERM, and SIGKILL after the grace period, without a restart; wait for its end."""
        self._stopping.set()
        if self._task is None:
            return
        self._signal(signal.SIGTERM)
        done, _ = await asyncio.wait({self._task}, timeout=self._policy.grace_s)
        if not done:
            self._reporter.event(self.pod.name, f"did not exit within {self._policy.grace_s:g} s of SIGTERM; killed")
            self._signal(signal.SIGKILL)
        await self._task

    def kill(self) -> None:
        """Kill the process at once, without a restart."""
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _supervise(self) -> None:
        pause, loop = self._policy.first_s, asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            try:
                code = await self._run_once()
                ended = _ending(code)
                self.misconfigured = code == _MISCONFIGURED
            except OSError as error:  # the machine has no process, descriptor or memory left
                ended = f"cannot start: {error.strerror}"
            if self._stopping.is_set():
                return
            self.deaths += 1
            if loop.time() - began >= self._policy.reset_after_s:
                pause = self._policy.first_s
            self._reporter.event(self.pod.name, f"{ended}; restarting in {pause:g} s")
            await self._pause(pause)
            pause = min(2 * pause, self._policy.longest_s)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _run_once(self) -> int:
        """Run the process until it exits; return its exit code (negative: the signal that ended it)."""
        process = await asyncio.create_subprocess_exec(
            *tethered(self.pod.argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.pod.environment},
            start_new_session=True,  # Ctrl-C in a terminal must reach the runner only, which drains in order
        )
        self._process = process
        if self._stopping.is_set():  # `stop` was called during the start
            self._signal(signal.SIGTERM)
        reader = asyncio.create_task(self._copy_output(process))
        try:
            code = await process.wait()
            await asyncio.wait({reader}, timeout=_OUTPUT_CLOSES_S)
        finally:
            reader.cancel()
            await asyncio.wait({reader})
            self._process = None
        return code

    async def _copy_output(self, process: asyncio.subprocess.Process) -> None:
        """Copy lines to log and reporter until the pipe closes; errors of the log file are ignored."""
        assert process.stdout is not None
        log = LogFile(self._log_file, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8", delay=True)
        with closing(log):
            rest = b""
            while chunk := await process.stdout.read(_LONGEST_LINE):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > _LONGEST_LINE:
                    lines, rest = [*lines, rest], b""
                self._record(lines, log)
            self._record([rest] if rest else [], log)

    def _record(self, lines: list[bytes], log: logging.Handler) -> None:
        for line in lines:
            text = line.decode("utf-8", "replace")
            log.emit(logging.makeLogRecord({"msg": text}))
            self.last_lines.append(text)
            self._reporter.output(self.pod.name, text)


class LogFile(RotatingFileHandler):
    """A log file that reports a write error, such as a full disk, one time until a write succeeds again."""

    _failed = _reported = False

    def emit(self, record: logging.LogRecord) -> None:
        self._failed = False
        super().emit(record)
        self._reported = self._reported and self._failed

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Report an error of `emit`."""
        self._failed = True
        if not self._reported:
            self._reported = True
            _log.warning("cannot write to %s: %s", self.baseFilename, sys.exc_info()[1])


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
