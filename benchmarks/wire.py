"""One scheduler process for a thousand models, codec and gRPC included: its share of a core, and how long calls wait.

A process beside it speaks for 256 sidecars and 8 gateways (benchmarks/wire_pool.py). From the outside, this one asks
for the leader all the time, which the scheduler answers in its loop: the longest answer is the longest that anything
waits there. Meanwhile the status is read and /metrics scraped, as by an operator and by Prometheus.
Run: python -m benchmarks.wire [NAME ...]
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from benchmarks.core import Size, quantile
from benchmarks.report import Row, report
from benchmarks.size import ENGINES, WARM_S

from aegaeon_cli.demo.stack import free_port
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc, leadership_pb2, leadership_pb2_grpc

_ASK_EVERY_S = 0.01
_READ_EVERY_S = 1.0
SHARE, WAIT_MS = 0.8, 50.0
_OPTIONS = (("grpc.max_receive_message_length", 64 << 20),)


@dataclass(frozen=True)
class Point:
    """A size by its name, and the events per second that make it up: with fewer, its figures say nothing."""

    name: str
    size: Size
    events_per_s: float


POINTS = (
    Point("1,000 models x 256 engines, 0.5/s", Size(1000, 0.5, 30.0), 5000.0),
    Point("3,000 models x 256 engines, 0.1/s", Size(3000, 0.1, 30.0), 5000.0),
)


@dataclass(frozen=True)
class Serving:
    """A scheduler process."""

    pid: int
    target: str
    metrics: str

    def cpu_s(self) -> float:
        """Seconds that it has computed, all of its threads together."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def scrape(self) -> str:
        """GET /metrics."""
        with urllib.request.urlopen(self.metrics) as page:
            return str(page.read().decode())

    def core_s(self) -> tuple[float, float]:
        """Seconds that the core took, and events that it handled."""
        page = self.scrape()
        return _figure(page, "sum"), _figure(page, "count")


def _figure(page: str, kind: str) -> float:
    found = re.search(rf"^aegaeon_scheduler_event_seconds_{kind} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


@asynccontextmanager
async def scheduler(models: int) -> AsyncIterator[Serving]:
    """It serves such a catalog until the end of the context."""
    with tempfile.TemporaryDirectory(prefix="aegaeon-wire-") as folder:
        target, metrics = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        entries = [
            {"name": f"model-{i:03}", "source": {"directory": f"/models/{i}"}, "ttft_s": 10.0, "tbt_s": 0.1}
            for i in range(models)
        ]
        path = Path(folder) / "scheduler.json"
        path.write_text(json.dumps({"listen": target, "metrics_listen": metrics, "models": entries}))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aegaeon_scheduler", "--config", str(path), stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            while b"serving" not in (line := await process.stderr.readline()):
                if not line:
                    raise RuntimeError("the scheduler ended before it served")
            draining = asyncio.create_task(process.stderr.read())
            yield Serving(process.pid, target, f"http://{metrics}/metrics")
        finally:
            process.terminate()
            await process.wait()
            await draining


async def asked(target: str, waits_s: list[float]) -> None:
    """Ask for the leader again and again, and note how long each answer takes."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = leadership_pb2_grpc.LeadershipStub(channel)
        while True:
            began = time.perf_counter()
            await stub.Ask(leadership_pb2.LeaderRequest())
            waits_s.append(time.perf_counter() - began)
            await asyncio.sleep(_ASK_EVERY_S)


async def watched(serving: Serving, reads_s: list[float]) -> None:
    """Read the status and the metrics every second, and note how long the status takes as a whole."""
    async with grpc.aio.insecure_channel(serving.target, options=_OPTIONS) as channel:
        stub = gateway_pb2_grpc.FrontendStub(channel)
        while True:
            began = time.perf_counter()
            async for _ in stub.Status(gateway_pb2.StatusRequest()):
                pass
            reads_s.append(time.perf_counter() - began)
            await asyncio.to_thread(serving.scrape)
            await asyncio.sleep(_READ_EVERY_S)


@dataclass(frozen=True)
class Measured:
    """Of one run, after its first seconds. `share` and `core` are of a core, times in seconds."""

    share: float
    core: float
    events_per_s: float
    waits_s: list[float]
    reads_s: list[float]
    tokens_on_time: float
    accept_s: float


async def measure(point: Point) -> Measured:
    """Run the load against a fresh process."""
    size = point.size
    span_s = size.seconds - WARM_S
    async with scheduler(size.models) as serving:
        arguments = (serving.target, ENGINES, size.models, size.rate, size.seconds)
        load = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.wire_pool", *map(str, arguments), stdout=asyncio.subprocess.PIPE
        )
        assert load.stdout is not None
        try:
            await load.stdout.readline()
            await asyncio.sleep(WARM_S)
            waits_s: list[float] = []
            reads_s: list[float] = []
            core, cpu_s, began = serving.core_s(), serving.cpu_s(), time.perf_counter()
            calls = (asked(serving.target, waits_s), watched(serving, reads_s))
            tasks = [asyncio.create_task(call) for call in calls]
            await asyncio.sleep(span_s - 2.0)
            for task in tasks:
                task.cancel()
            took_s, after = time.perf_counter() - began, serving.core_s()
            share = (serving.cpu_s() - cpu_s) / took_s
            _, on_time, accept_s, _ = (await load.stdout.readline()).split()
        finally:
            if load.returncode is None:
                load.terminate()
            await load.wait()
    in_core_s, events = after[0] - core[0], after[1] - core[1]
    return Measured(share, in_core_s / took_s, events / took_s, waits_s, reads_s, float(on_time), float(accept_s))


def rows(point: Point) -> list[Row]:
    """The figures of one size."""
    m, name = asyncio.run(measure(point)), point.name
    return [
        Row(f"{name}: events per second", m.events_per_s, "events/s", point.events_per_s, ">=", 0.9),
        Row(f"{name}: scheduler process", m.share, "of a core", SHARE, "<="),
        Row(f"{name}: of this, in the core", m.core, "of a core"),
        Row(f"{name}: longest wait of a call", max(m.waits_s) * 1e3, "ms", WAIT_MS, "<="),
        Row(f"{name}: wait of a call, p99", quantile(m.waits_s, 0.99) * 1e3, "ms"),
        Row(f"{name}: whole status, p50", quantile(m.reads_s, 0.5) * 1e3, "ms"),
        Row(f"{name}: longest wait until a request is accepted", m.accept_s * 1e3, "ms"),
        Row(f"{name}: tokens on time", m.tokens_on_time * 100, "%"),
    ]


def main() -> int:
    """Both sizes, or those whose name begins as is said."""
    wanted = tuple(sys.argv[1:]) or ("",)
    chosen = [point for point in POINTS if point.name.startswith(wanted)]
    return 0 if report("wire", [row for point in chosen for row in rows(point)]) else 1


if __name__ == "__main__":
    sys.exit(main())
