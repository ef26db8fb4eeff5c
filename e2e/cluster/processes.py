"""Processes that outlive the command that started them: written down by pid and start time, ended by exactly those."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Layout

_POLL_S = 0.05
_STANDARD = 2  # the last of stdin, stdout and stderr


@dataclass(frozen=True, slots=True)
class Started:
    """A process of the cluster. `born` (clock ticks since boot) tells it from a later one with the same pid."""

    name: str
    pid: int
    born: int

    @property
    def alive(self) -> bool:
        return _born(self.pid) == self.born


def start(
    layout: Layout, name: str, argv: Sequence[str], *, inside: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> Started:
    """Start `argv` in a session of its own, behind the `inside` prefix; output goes to logs/NAME.log.

    It gets nothing else that this process has open: a lock that a shell holds would be held until `make cluster-down`.
    """
    _keep_to_myself()
    layout.logs.mkdir(parents=True, exist_ok=True)
    layout.processes.mkdir(parents=True, exist_ok=True)
    with (layout.logs / f"{name}.log").open("ab") as log, Path(os.devnull).open("rb") as nothing:
        ends, program = {0: nothing, 1: log, 2: log}, [*inside, *argv]
        pid = os.posix_spawnp(  # no process waits for it, as subprocess.Popen asks
            program[0],
            program,
            {**os.environ, **(env or {})},
            file_actions=[(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number, file in ends.items()],
            setsid=True,
        )
    started = Started(name, pid, _born(pid) or 0)
    (layout.processes / f"{name}.json").write_text(json.dumps({"pid": started.pid, "born": started.born}), "utf-8")
    return started


def find(layout: Layout, name: str) -> Started | None:
    """The process of that name, when it was started and lives."""
    file = layout.processes / f"{name}.json"
    if not file.exists():
        return None
    kept = json.loads(file.read_text("utf-8"))
    started = Started(name, kept["pid"], kept["born"])
    return started if started.alive else None


def running(layout: Layout) -> list[Started]:
    """All of them that live, in the order of starting."""
    files = sorted(layout.processes.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    return [found for file in files if (found := find(layout, file.stem))]


def stop(layout: Layout, started: Started, patience_s: float = 5.0) -> None:
    """SIGTERM, and SIGKILL when that was not heard."""
    for sign, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        if started.alive:
            os.kill(started.pid, sign)
            deadline = time.monotonic() + patience
            while started.alive and time.monotonic() < deadline:
                time.sleep(_POLL_S)  # a process of another session cannot be waited for
    (layout.processes / f"{started.name}.json").unlink(missing_ok=True)


def wait_for(what: str, ready: Callable[[], bool], layout: Layout, log: str, within_s: float = 60.0) -> None:
    """Poll until `ready`. Raises ClusterError with the end of the log of the process that should have made it so."""
    deadline = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterError(f"{what} did not come up within {within_s:g} s; {tail(layout.logs / f'{log}.log')}")
        time.sleep(_POLL_S)  # nothing to wait on: the process belongs to no event loop of ours


def tail(log: Path, lines: int = 12) -> str:
    """The last lines of a log, with its path."""
    if not log.exists():
        return f"{log} was never written"
    return f"the end of {log}:\n" + "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])


def run(*argv: str, stdin: str | None = None) -> str:
    """Run a command to its end and return its output. Raises ClusterError with what it said."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(argv[:6])} ended with {done.returncode}: {done.stderr.strip() or done.stdout}")
    return done.stdout


def _keep_to_myself() -> None:
    """File descriptors inherited by this process, which children of Python inherit, unlike its own."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the listing itself
            if int(name) > _STANDARD:
                os.set_inheritable(int(name), False)


def _born(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])
