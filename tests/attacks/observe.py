"""What an attack does to a stack's processes, seen from outside: memory, the event loop's long callbacks."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path

from aegaeon_cli.demo.processes import descendants

SAMPLE_S = 0.1
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Callback:
    """One callback of the gateway's event loop."""

    at: float  # monotonic, when it began
    cpu_s: float
    wall_s: float
    name: str


def pss_bytes(root: int) -> int:
    """Proportional set size of a process and everything below it."""
    return sum(_pss(process.pid) for process in descendants(root))


def _pss(pid: int) -> int:
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0  # it has ended
    return int(found[1]) * 1024 if found else 0


class Memory:
    """`async with` it: the largest PSS of a process and its children meanwhile."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.before_bytes = 0
        self.peak_bytes = 0

    async def __aenter__(self) -> Memory:
        self.before_bytes = self.peak_bytes = await asyncio.to_thread(pss_bytes, self._pid)
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _sample(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, await asyncio.to_thread(pss_bytes, self._pid))
            await asyncio.sleep(SAMPLE_S)


def callbacks(file: Path, begin: float, end: float) -> list[Callback]:
    """Those that began within the time, the longest first."""
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = [Callback(one["at"], one["cpu_s"], one["wall_s"], one["name"]) for one in lines]
    return sorted((one for one in found if begin <= one.at <= end), key=lambda one: -one.cpu_s)
