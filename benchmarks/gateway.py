"""What one streamed token costs in the gateway: tokens per second and core, and the latency that it adds.

A gateway process gets its tokens from this one, which is scheduler and sidecar to it. What the gateway adds is the
difference to a run in which this process itself writes such events to the same clients.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from benchmarks.report import Row, report
from benchmarks.streams import FIRST, STEPS, Load, Plateau, measure, measure_direct, write_model

from aegaeon_operator.podrunner import SocketFolder
from aegaeon_proto.frames import dial, frame, read_frame
from aegaeon_proto.roles import Role
from aegaeon_proto.servers import make_server
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2
from aegaeon_proto.v1.gateway_pb2_grpc import FrontendServicer, add_FrontendServicer_to_server

LOADS = (Load(8, 200), Load(32, 50), Load(32, 150), Load(32, 2000))
"""light, for the latency, for the throughput, more than a core takes"""


@dataclass
class Source(FrontendServicer):
    """Accepts everything. Inside `async with connected()` it pushes to all that was submitted."""

    model: Path
    opened: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _writer: Any = None

    async def Serve(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # the stub is for sync servers as well
        async for message in request_iterator:
            if message.HasField("hello"):
                spec = model_pb2.ModelSpec(
                    name="bench", source=model_pb2.ModelSource(directory=str(self.model)), ttft_s=10, tbt_s=0.1
                )
                footprint = model_pb2.Footprint(max_model_len=STEPS + 64)
                status = pb.ModelStatus(spec=spec, phase=model_pb2.MODEL_PHASE_CACHED, footprint=footprint)
                await context.write(pb.GatewayReply(catalog=pb.CatalogStatus(models=[status])))
            elif message.HasField("submit"):
                await context.write(pb.GatewayReply(accepted=pb.Accepted(request=message.submit.request)))
                self.opened.put_nowait(message.submit.request)

    async def Status(self, request: Any, context: Any) -> None:  # type: ignore[override]  # the stub is for sync servers as well
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

    @asynccontextmanager
    async def connected(self, sink: str) -> AsyncIterator[None]:
        reader, self._writer = await dial(sink, None, Role.GATEWAY)
        acknowledged = asyncio.create_task(_exhaust(reader))
        yield
        self._writer.write_eof()
        await acknowledged

    async def push(self, requests: list[str], step: int) -> None:
        """One decode step of all streams."""
        finish = model_pb2.FINISH_REASON_LENGTH if step == STEPS - 1 else model_pb2.FINISH_REASON_UNSPECIFIED
        tokens = [
            pb.Token(seq=model_pb2.SeqId(request=request), epoch=1, index=step, token=FIRST + step, finish=finish)
            for request in requests
        ]
        self._writer.write(frame(pb.TokenBatch(instance="bench", number=next(self._numbers), tokens=tokens)))
        await self._writer.drain()


async def _exhaust(reader: asyncio.StreamReader) -> None:
    with suppress(EOFError):
        while True:
            await read_frame(reader, pb.TokenAck)


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway process and its engine."""

    source: Source
    port: int
    pid: int

    async def measure(self, load: Load) -> Plateau:
        return await measure(self.source, self.port, self.pid, load)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    """A gateway that serves the model in the folder, until the end of the context."""
    with SocketFolder.create() as sockets:
        async with _running(folder, f"unix:{sockets.path}/scheduler", f"unix:{sockets.path}/sink") as made:
            yield made


@asynccontextmanager
async def _running(folder: Path, scheduler: str, sink: str) -> AsyncIterator[Running]:
    server, source = make_server(), Source(folder)
    add_FrontendServicer_to_server(source, server)
    server.add_insecure_port(scheduler)
    await server.start()
    config = {"name": "bench", "listen": "127.0.0.1:0", "scheduler": scheduler, "sink": sink}
    (folder / "gateway.json").write_text(json.dumps(config))
    arguments = ("-m", "aegaeon_gateway", "--config", str(folder / "gateway.json"))
    gateway = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.PIPE)
    try:
        port = await listening_port(gateway)
        async with source.connected(sink):
            yield Running(source, port, gateway.pid)
    finally:
        gateway.terminate()
        await gateway.communicate()
        await server.stop(grace=None)


async def listening_port(gateway: asyncio.subprocess.Process) -> int:
    """Read the gateway's log until it listens."""
    assert gateway.stderr is not None
    async for line in gateway.stderr:
        if match := re.search(rb"listening on http://[^ ]*:(\d+)", line):
            return int(match[1])
    raise RuntimeError("the gateway ended before it listened")


async def bench(folder: Path) -> list[Row]:
    """Start the gateway and run all loads."""
    direct_ms = await measure_direct(LOADS[1])
    write_model(folder)
    async with running(folder) as gateway:
        return rows_of([await gateway.measure(load) for load in LOADS], direct_ms)


def rows_of(plateaus: list[Plateau], direct_ms: float) -> list[Row]:
    """Latency and tokens per core have their limits at loads without a backlog: a backlog makes tokens cheaper."""
    _, middle, high, _ = plateaus
    load = f"{middle.load.streams} streams, {middle.tokens_s:.0f} tokens/s"
    rows = [
        Row("streamed tokens per core of the gateway", high.tokens_s_core, "tokens/s", 5000, ">="),
        Row(f"added latency p50, {load}", middle.p50_ms - direct_ms, "ms", 1, "<="),
        Row(f"latency p50 without a gateway, {load}", direct_ms, "ms"),
    ]
    for plateau in plateaus:
        load = f"{plateau.load.streams} streams, {plateau.tokens_s:.0f} tokens/s"
        rows.append(Row(f"tokens per core, {load}", plateau.tokens_s_core, "tokens/s"))
        rows.append(Row(f"latency p50, {load}", plateau.p50_ms, "ms"))
        rows.append(Row(f"latency p99, {load}", plateau.p99_ms, "ms"))
    return rows


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="aegaeon-gateway-") as folder:
        return 0 if report("gateway", asyncio.run(bench(Path(folder)))) else 1


if __name__ == "__main__":
    sys.exit(main())
