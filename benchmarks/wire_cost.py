"""Where a scheduler process spends its time on one event: the core, the codec, protobuf, gRPC and its threads.

A scheduler runs as in benchmarks/wire.py with clocks of the main thread's CPU time around its parts, which take some
10 us an event by themselves. What is within none of them is asyncio's and gRPC's.
Run: python -m benchmarks.wire_cost [ENGINES]
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import grpc
from benchmarks.report import Row, report
from benchmarks.wire import scheduler

from aegaeon_proto.codec.reports import ReportDecoder
from aegaeon_scheduler import __main__ as process
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.service import driver, engine, frontend
from aegaeon_scheduler.service.metrics import EventMetrics

MODELS_EACH, RATE, WARM_S, SPAN_S, SECONDS = 4, 0.5, 12.0, 15.0, 30.0
_ENGINES = 64
PARTS = {
    "core": "the core",
    "reports": "codec, reports",
    "commands": "codec, commands",
    "metrics": "metrics",
    "service": "driver and service",
    "parse": "protobuf, reading",
    "serialise": "protobuf, writing",
}


class Clocks:
    """CPU seconds of the main thread by part; what a part calls of another counts for that one alone."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._within: list[str] = []
        self._since = 0.0

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, on the clock."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._lap()
            self._within.append(part)
            try:
                return call(*args, **kwargs)
            finally:
                self._lap()
                self._within.pop()

        return timed

    def _lap(self) -> None:
        now = time.thread_time()
        if self._within:
            self.spent[self._within[-1]] += now - self._since
        self._since = now

    def handler(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Of a stream: its messages are read and written on the clock."""

        def made(behaviour: Any, request_deserializer: Any, response_serializer: Any) -> Any:
            return make(
                behaviour,
                request_deserializer=self.around("parse", request_deserializer),
                response_serializer=self.around("serialise", response_serializer),
            )

        return made


class Clocked:
    """The core behind a clock: compiled classes cannot be patched."""

    def __init__(self, core: Scheduler, clocks: Clocks) -> None:
        self._core = core
        self.on = clocks.around("core", core.on)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)


def serve(config: str, file: Path) -> int:
    """A scheduler with clocks in it, which it writes at every SIGUSR1."""
    clocks, made = Clocks(), grpc.stream_stream_rpc_method_handler

    def write(*_: object) -> None:
        spent = {**clocks.spent, "main": time.thread_time(), "all": time.process_time()}
        file.with_suffix(".new").write_text(json.dumps(spent))
        file.with_suffix(".new").rename(file)

    signal.signal(signal.SIGUSR1, write)
    with ExitStack() as stack:
        for owner, name, part in (
            (ReportDecoder, "report", "reports"),
            (driver, "command_to", "commands"),
            (EventMetrics, "__call__", "metrics"),
            (engine.EngineService, "_reports", "service"),
            (frontend.FrontendService, "_message", "service"),
            (driver.Driver, "handle", "service"),
        ):
            stack.enter_context(patch.object(owner, name, clocks.around(part, getattr(owner, name))))
        stack.enter_context(patch.object(process, "Scheduler", lambda settings: Clocked(Scheduler(settings), clocks)))
        stack.enter_context(patch.object(grpc, "stream_stream_rpc_method_handler", clocks.handler(made)))
        sys.argv = ["aegaeon_scheduler", "--config", config]
        return process.main()


def written(pid: int, file: Path) -> dict[str, float]:
    """What the clocks of the process show now."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    while not file.is_file():
        time.sleep(0.01)  # another process writes it
    return dict(json.loads(file.read_text()))


async def measure(engines: int) -> AsyncIterator[Row]:
    """CPU us an event, by part."""
    with TemporaryDirectory(prefix="aegaeon-cost-") as folder:
        file, models = Path(folder) / "clocks.json", str(engines * MODELS_EACH)
        run = ("-m", "benchmarks.wire_cost", "serve", str(file))
        async with scheduler(engines * MODELS_EACH, run) as serving:
            arguments = (serving.target, str(engines), models, str(RATE), str(SECONDS))
            load = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.wire_pool", *arguments, stdout=asyncio.subprocess.PIPE
            )
            assert load.stdout is not None
            try:
                await load.stdout.readline()
                await asyncio.sleep(WARM_S)
                (_, events), before, began = (
                    serving.core_s(),
                    await asyncio.to_thread(written, serving.pid, file),
                    time.perf_counter(),
                )
                await asyncio.sleep(SPAN_S)
                after, took_s = await asyncio.to_thread(written, serving.pid, file), time.perf_counter() - began
                events = serving.core_s()[1] - events
            finally:
                load.terminate()
                await load.wait()
    spent = {part: after[part] - before.get(part, 0.0) for part in after}
    rest = spent["main"] - sum(spent[part] for part in PARTS)
    name = f"{engines} engines"
    yield Row(f"{name}: events", events / took_s, "events/s")
    yield Row(f"{name}: an event, all of the process", spent["all"] / events * 1e6, "CPU us")
    for part, text in PARTS.items():
        yield Row(f"{name}: of that, {text}", spent[part] / events * 1e6, "CPU us")
    yield Row(f"{name}: of that, asyncio and gRPC in the loop's thread", rest / events * 1e6, "CPU us")
    yield Row(f"{name}: of that, other threads (gRPC's)", (spent["all"] - spent["main"]) / events * 1e6, "CPU us")


async def _rows(engines: int) -> list[Row]:
    return [row async for row in measure(engines)]


def main() -> int:
    """See the module."""
    if sys.argv[1:2] == ["serve"]:
        return serve(sys.argv[4], Path(sys.argv[2]))  # SERVE FILE --config CONFIG
    engines = int(sys.argv[1]) if sys.argv[1:] else _ENGINES
    return 0 if report("wire_cost", asyncio.run(_rows(engines)), short=engines != _ENGINES) else 1


if __name__ == "__main__":
    sys.exit(main())
