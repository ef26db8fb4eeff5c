"""The load of benchmarks/wire.py and benchmarks/overload.py: requests, and two processes that bring them.

Modelled engines are one process (wire_engines.py) and eight gateways another one (wire_gateways.py), as a loop that is
taken up by engines would itself hold requests up, and so that neither's CPU time is counted as the scheduler's. Each
gets the load as its second argument, prints a line when all have attached, begins at the time that it reads, on the
machine's monotonic clock, and prints a line of JSON at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypedDict

from benchmarks.core import Size, arrivals, pool

from aegaeon_scheduler.core.domain import ModelName, Role, Slo
from aegaeon_simulator.engine.spec import EngineSpec, Served

NODE_ENGINES = 8
_REPORT_BYTES = 1 << 26
_READY_S = 1.0  # from the order to begin until the load begins


class Arrival(NamedTuple):
    """A request: its name, model, tokens of the prompt and of the answer, and when it comes (seconds)."""

    request: str
    model: ModelName
    prompt: int
    length: int
    at: float


class OfEngines(TypedDict):
    """Their share of a core, and of each request the tokens in time and due (see `Load.counted_s`)."""

    share: float
    tokens: dict[str, tuple[int, int]]


class OfGateways(TypedDict):
    """Their share of a core; seconds until each request was accepted, or refused; submissions after they were due."""

    share: float
    waits: dict[str, float]
    refused: dict[str, float]
    lost: int
    late_p99_s: float
    latest_s: float


@dataclass(frozen=True)
class Load:
    """`phases`: requests a second of each model, and for how many seconds."""

    engines: int
    models: int
    phases: tuple[tuple[float, float], ...]

    @classmethod
    def from_argument(cls, text: str) -> Load:
        fields = json.loads(text)
        return cls(fields["engines"], fields["models"], tuple(map(tuple, fields["phases"])))

    def as_argument(self) -> str:
        return json.dumps(asdict(self))

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.phases)

    @property
    def counted_s(self) -> float:
        """End of the first phase: tokens that are due later count neither as in time nor as late."""
        return self.phases[0][1]

    def pool(self) -> tuple[dict[ModelName, tuple[Served, Slo]], list[EngineSpec]]:
        return pool(self._sizes()[0], [Role.UNIFIED] * self.engines)

    def requests(self) -> list[Arrival]:
        """In order; the same in every process."""
        models, _ = self.pool()
        everything, began = [], 0.0
        for size in self._sizes():
            everything += [(*request, began + at) for *request, at in arrivals(size, models)]
            began += size.seconds
        everything.sort(key=lambda request: request[3])
        return [Arrival(f"r{number}", *request) for number, request in enumerate(everything)]

    def _sizes(self) -> list[Size]:
        return [Size(self.models, rate, seconds, NODE_ENGINES) for rate, seconds in self.phases]


def in_time_of_due(tokens: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Sums of OfEngines' tokens of some requests."""
    sums = [sum(column) for column in zip(*tokens, strict=True)] or [0, 0]
    return sums[0], sums[1]


class Processes:
    """Both of them, attached to one scheduler."""

    def __init__(self, engines: asyncio.subprocess.Process, gateways: asyncio.subprocess.Process) -> None:
        self._engines, self._gateways = engines, gateways

    async def begin(self) -> None:
        """Return when the load begins."""
        start = time.monotonic() + _READY_S
        for process in (self._engines, self._gateways):
            assert process.stdin is not None
            process.stdin.write(f"{start}\n".encode())
            await process.stdin.drain()
        await asyncio.sleep(_READY_S)

    async def ended(self) -> tuple[OfEngines, OfGateways]:
        return await _line(self._engines), await _line(self._gateways)


async def _line(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


@asynccontextmanager
async def _started(module: str, target: str, load: Load) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", module, target, load.as_argument())
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=_REPORT_BYTES)
    try:
        assert process.stdout is not None
        if await process.stdout.readline() != b"attached\n":
            raise RuntimeError(f"{module} ended before it had attached")
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def attached(target: str, load: Load) -> AsyncIterator[Processes]:
    """Engines and gateways of such a load, until the end of the context."""
    async with (
        _started("benchmarks.wire_engines", target, load) as engines,
        _started("benchmarks.wire_gateways", target, load) as gateways,
    ):
        yield Processes(engines, gateways)
