"""Processes of a pod's container, reached from outside of it: killed, stopped, or short of memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e.chaos.errors import MissedError
from e2e.chaos.view import Seen
from e2e.cluster import cgroups
from e2e.cluster.errors import ClusterError
from e2e.cluster.layout import Node

# What takes the memory is many processes, so that none of them is the largest one, which is whom the kernel ends.
_TAKERS, _TAKES_MIB = 16, 24
_TAKE = f"""
import os
input()
for _ in range({_TAKERS}):
    if os.fork() == 0:
        held = [b"x" * (1 << 20) for _ in range({_TAKES_MIB})]
        break
os.read(0, 1)
"""
_LEFT_BYTES = 16 << 20
_OUT_OF_MEMORY_S = 15.0
_BOUNDS = (("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current"))


def processes(node: Node, pod: Seen) -> list[int]:
    """The container's, its main one first. Raises MissedError when it does not run."""
    group = _group(node, pod)
    pids = [int(line) for line in (group / "cgroup.procs").read_text("utf-8").split()]
    main = [pid for pid in pids if _parent(pid) not in pids]
    if not main:
        raise MissedError(f"nothing runs in {pod.name}")
    return [*main, *(pid for pid in pids if pid not in main)]


def kill(*pids: int) -> None:
    """As `kill -9`."""
    for pid in pids:
        with suppress(ProcessLookupError):  # it went with another one
            os.kill(pid, signal.SIGKILL)


@contextmanager
def stopped(node: Node, pod: Seen) -> Iterator[None]:
    """All of its processes are stopped (SIGSTOP) until the `with` ends."""
    pids = processes(node, pod)
    try:
        _signal(pids, signal.SIGSTOP)
        yield
    finally:
        _signal(reversed(pids), signal.SIGCONT)


def exhaust(node: Node, pod: Seen) -> list[int]:
    """Let it run out of memory, and return what the kernel has ended of it. Raises MissedError when that is nothing."""
    group, before = _group(node, pod), processes(node, pod)
    limit, usage = next((group / limit, group / usage) for limit, usage in _BOUNDS if (group / limit).exists())
    unlimited = limit.read_text("utf-8")
    with _taker(group) as take:
        try:
            limit.write_text(str(int(usage.read_text("utf-8")) + _LEFT_BYTES), "utf-8")
            take()
            return _gone(before, pod)
        finally:
            with suppress(OSError):  # the container is gone, most of the time
                limit.write_text(unlimited, "utf-8")


@contextmanager
def _taker(group: Path) -> Iterator[Callable[[], None]]:
    """Processes in a container's cgroup that allocate memory on request, and end with the `with`."""
    process = subprocess.Popen([sys.executable, "-c", _TAKE], stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None

    stdin = process.stdin.fileno()

    def take() -> None:
        os.write(stdin, b"\n")

    try:
        (group / "cgroup.procs").write_text(str(process.pid), "utf-8")
        yield take
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _gone(pids: list[int], pod: Seen) -> list[int]:
    deadline = time.monotonic() + _OUT_OF_MEMORY_S
    while all(map(_parent, pids)):
        if time.monotonic() > deadline:
            raise MissedError(f"the kernel spared all of {pod.name}")
        time.sleep(0.05)  # a process of another parent cannot be waited for
    return [pid for pid in pids if not _parent(pid)]


def _signal(pids: Iterable[int], sign: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(pid, sign)


def _group(node: Node, pod: Seen) -> Path:
    try:
        return cgroups.of_container(node.namespace, pod.container)
    except ClusterError as error:
        raise MissedError(f"{pod.name} does not run") from error


def _parent(pid: int) -> int:
    """0 when it has ended."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(parent)
