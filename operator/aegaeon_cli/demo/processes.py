"""The descendants of a process, and a test that each still runs (a pid alone may have been reused)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process, identified uniquely by its pid and start time in clock ticks."""

    pid: int
    started: int
    name: str


def descendants(root: int) -> set[Process]:
    """`root` and every process below it, now."""
    parents = {process: parent for process, parent in map(_read, _pids()) if process is not None}
    family = {process for process in parents if process.pid == root}
    while grown := {child for child, parent in parents.items() if parent in {p.pid for p in family}} - family:
        family |= grown
    return family


def alive(process: Process) -> bool:
    """True when exactly this process exists; false for a zombie that has ended but is not reaped."""
    return _read(process.pid)[0] == process


def command_line(pid: int) -> str:
    """The process's command line, arguments separated by blanks; empty when it no longer exists."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _read(pid: int) -> tuple[Process | None, int]:
    """The process and its parent's pid; None when it no longer exists."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None, 0
    name, _, rest = stat[stat.index("(") + 1 :].rpartition(")")
    fields = rest.split()
    return (None, 0) if fields[0] in "ZX" else (Process(pid, int(fields[19]), name), int(fields[1]))
