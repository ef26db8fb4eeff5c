"""One scheduler process for a thousand models, codec and gRPC included: its share of a core, how long calls wait.

Two processes beside it speak for 256 sidecars and 8 gateways (benchmarks/wire_load.py); all have attached before
anything is measured. From the outside, this one asks for the leader all the time, which the scheduler answers in its
loop: the longest answer is the longest that anything waits there. Meanwhile the status is read and /metrics scraped, as
by an operator and by Prometheus. Where other work has the processors, a call waits for one as well: that part, which
Linux counts for both threads, is not the scheduler's, and said on its own.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.core import Size, quantile
from benchmarks.report import Row, report
from benchmarks.size import ENGINES, WARM_S
from benchmarks.wire_load import Load, OfEngines, OfGateways, attached, in_time_of_due

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import free_port
from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc, leadership_pb2, leadership_pb2_grpc

_ASK_EVERY_S = 0.01
_READ_EVERY_S = 1.0
_ANSWER_S = 2.0  # requests that come this long before the end have been accepted or refused by then
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

    def delayed_s(self) -> float:
        """Seconds that its threads were ready to run and others ran; where several wait at once, each counts."""
        return sum(map(_delayed_s, Path(f"/proc/{self.pid}/task").glob("*/schedstat")))

    def scrape(self) -> str:
        """GET /metrics."""
        return clients.page(self.metrics)

    def core_s(self) -> tuple[float, float]:
        """Seconds that the core took, and events that it handled."""
        page = self.scrape()
        return _figure(page, "sum"), _figure(page, "count")


def _delayed_s(schedstat: Path) -> float:
    return int(schedstat.read_text().split()[1]) / 1e9


@dataclass(frozen=True)
class Call:
    """One answer. `delayed_s`: how long the threads of both sides waited for a processor; `beside`: what else was
    being read, empty: nothing."""

    took_s: float
    delayed_s: float
    beside: str

    @property
    def in_loop_s(self) -> float:
        """What is not explained by other work on the machine."""
        return max(0.0, self.took_s - self.delayed_s)


def _figure(page: str, kind: str) -> float:
    found = re.search(rf"^aegaeon_scheduler_event_seconds_{kind} (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


@asynccontextmanager
async def scheduler(models: int) -> AsyncIterator[Serving]:
    """Serves such a catalog until the end of the context."""
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


class Observer:
    """Calls a scheduler from the outside, and notes how long it takes to answer."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._reading = ""
        self.calls: list[Call] = []
        self.statuses_s: list[float] = []

    async def ask(self) -> None:
        """For the leader, again and again."""
        async with plain_channel(self._serving.target) as channel:
            stub = leadership_pb2_grpc.LeadershipStub(channel)
            while True:
                before, delayed_s, began = self._reading, self._delayed_s(), time.perf_counter()
                await stub.Ask(leadership_pb2.LeaderRequest())
                took_s = time.perf_counter() - began
                self.calls.append(Call(took_s, self._delayed_s() - delayed_s, before or self._reading))
                await asyncio.sleep(_ASK_EVERY_S)

    def _delayed_s(self) -> float:
        return self._serving.delayed_s() + _delayed_s(Path("/proc/thread-self/schedstat"))

    async def read(self) -> None:
        """The status and the metrics, every second."""
        async with plain_channel(self._serving.target, options=_OPTIONS) as channel:
            stub = gateway_pb2_grpc.FrontendStub(channel)
            while True:
                began, self._reading = time.perf_counter(), "status"
                async for _ in stub.Status(gateway_pb2.StatusRequest()):
                    pass
                self.statuses_s.append(time.perf_counter() - began)
                self._reading = "metrics"
                await asyncio.to_thread(self._serving.scrape)
                self._reading = ""
                await asyncio.sleep(_READ_EVERY_S)

    def longest_s(self, beside: str) -> float:
        """Of calls while this was read, without the waits for a processor."""
        return max((one.in_loop_s for one in self.calls if one.beside == beside), default=0.0)


@dataclass(frozen=True)
class Measured:
    """Of one run, after its first seconds. `share`, `core` and `load` are of a core, times in seconds.

    `tokens_on_time`: of those due in the load's time of what was not refused; `late_p99_s` and `latest_s` are of the
    load: submissions after they were due."""

    share: float
    core: float
    events_per_s: float
    observer: Observer
    tokens_on_time: float
    refused: float
    unanswered: float
    accept_s: float
    late_p99_s: float
    latest_s: float
    load: float


async def measure(point: Point) -> Measured:
    """Run the load against a fresh process."""
    size = point.size
    load = Load(ENGINES, size.models, ((size.rate, size.seconds),))
    async with scheduler(size.models) as serving, attached(serving.target, load) as processes:
        await processes.begin()
        await asyncio.sleep(WARM_S)
        observer = Observer(serving)
        core, cpu_s, began = serving.core_s(), serving.cpu_s(), time.perf_counter()
        await _observe(observer, size.seconds - WARM_S - 2.0)
        took_s, after = time.perf_counter() - began, serving.core_s()
        share = (serving.cpu_s() - cpu_s) / took_s
        of_load = await processes.ended()
    in_core_s, events = after[0] - core[0], after[1] - core[1]
    return Measured(share, in_core_s / took_s, events / took_s, observer, **_of_load(load, *of_load))


async def _observe(observer: Observer, seconds: float) -> None:
    tasks = [asyncio.create_task(call) for call in (observer.ask(), observer.read())]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()


def _of_load(load: Load, engines: OfEngines, gateways: OfGateways) -> dict[str, float]:
    """The fields of Measured that are the load's."""
    refused, waits = gateways["refused"], gateways["waits"]
    early = [each.request for each in load.requests() if each.at < load.seconds - _ANSWER_S]
    in_time, due = in_time_of_due(tokens for request, tokens in engines["tokens"].items() if request not in refused)
    return {
        "tokens_on_time": in_time / max(1, due),
        "refused": len(refused),
        "unanswered": sum(request not in waits and request not in refused for request in early),
        "accept_s": max((wait for request, wait in waits.items() if request not in refused), default=0.0),
        "late_p99_s": gateways["late_p99_s"],
        "latest_s": gateways["latest_s"],
        "load": engines["share"] + gateways["share"],
    }


def rows(point: Point) -> list[Row]:
    """The figures of one size."""
    m, name = asyncio.run(measure(point)), point.name
    calls = m.observer.calls
    longest = [(beside, m.observer.longest_s(beside)) for beside in ("", "status", "metrics")]
    return [
        Row(f"{name}: events per second", m.events_per_s, "events/s", point.events_per_s, ">=", 0.9),
        Row(f"{name}: scheduler process", m.share, "of a core", SHARE, "<="),
        Row(f"{name}: scheduler process, an event", m.share / m.events_per_s * 1e6, "CPU us"),
        Row(f"{name}: of a core, in the core by the clock", m.core, "of a core"),
        Row(f"{name}: longest wait of a call", max(s for _, s in longest) * 1e3, "ms", WAIT_MS, "<="),
        *(Row(f"{name}: longest while {what or 'nothing else'} was read", s * 1e3, "ms") for what, s in longest),
        Row(f"{name}: longest, waits for a processor with it", max(one.took_s for one in calls) * 1e3, "ms"),
        Row(f"{name}: wait of a call, p99", quantile([one.in_loop_s for one in calls], 0.99) * 1e3, "ms"),
        Row(f"{name}: whole status, p50", quantile(m.observer.statuses_s, 0.5) * 1e3, "ms"),
        Row(f"{name}: longest wait until a request is accepted", m.accept_s * 1e3, "ms"),
        Row(f"{name}: requests refused (503)", m.refused, "requests"),
        Row(f"{name}: requests without an answer", m.unanswered, "requests", 0.0, "<="),
        Row(f"{name}: tokens on time, of those due of the others", m.tokens_on_time * 100, "%"),
        Row(f"{name}: the load's processes", m.load, "of a core"),
        Row(f"{name}: submitted late, p99", m.late_p99_s * 1e3, "ms"),
        Row(f"{name}: submitted late, at most", m.latest_s * 1e3, "ms"),
    ]


def main() -> int:
    """Both sizes, or those whose name begins as is said."""
    wanted = tuple(sys.argv[1:]) or ("",)
    chosen = [point for point in POINTS if point.name.startswith(wanted)]
    return 0 if report("wire", [row for point in chosen for row in rows(point)], short=chosen != list(POINTS)) else 1


if __name__ == "__main__":
    sys.exit(main())
