"""What one streamed token costs in the gateway: tokens per second and core, and the latency that it adds.

A gateway process, a token source (scheduler and sidecar in one) that pushes steps of one token per stream at a fixed
rate, and clients in a third process that read server-sent events from many open connections. Every token's text is its
own number, so a client knows when the source pushed what it has just received; all three share the machine's clock.
What the gateway adds is the difference to a run in which the source itself writes such events to the same clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from benchmarks.report import Row, report
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2
from aegaeon_proto.v1.gateway_pb2_grpc import FrontendServicer, TokenSinkStub, add_FrontendServicer_to_server

STEPS = 400
WARM_STEPS = 50
PLATEAUS = ((8, 200), (32, 50), (32, 150), (32, 2000))
"""(streams, steps per second): light, for the latency, for the throughput, more than a core takes"""
DIRECT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1763769600,"model":"bench",'
    b'"choices":[{"index":0,"text":"<%d>","logprobs":null,"finish_reason":null}]}\n\n'
)
"""an event as the gateway writes it"""
TICKS = os.sysconf("SC_CLK_TCK")


def write_model(directory: Path) -> None:
    """A byte-level vocabulary in which token 256 + k is the text `<k>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(alphabet)}
    vocabulary |= {f"<{step}>": 256 + step for step in range(STEPS + 1)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@dataclass
class Source(FrontendServicer):
    """Accepts everything; `run` pushes to all that was submitted."""

    model: Path
    submits: asyncio.Queue[pb.Submit] = field(default_factory=asyncio.Queue)

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
                self.submits.put_nowait(message.submit)

    async def Status(self, request: Any, context: Any) -> None:  # type: ignore[override]  # the stub is for sync servers as well
        await context.abort(grpc.StatusCode.UNIMPLEMENTED)

    async def run(self, sink: str, streams: int, rate: float, pid: int) -> tuple[list[float], float, float]:
        """Push STEPS tokens to each stream; returns push times, CPU seconds of `pid`, and seconds, after warm-up."""
        requests = [(await self.submits.get()).request for _ in range(streams)]
        pushed: list[float] = []
        cpu = began = 0.0
        async with grpc.aio.insecure_channel(sink) as channel:
            stream = TokenSinkStub(channel).Push()
            async for step in paced(rate):
                if step == WARM_STEPS:
                    cpu, began = cpu_s(pid), time.monotonic()
                batch = step_batch(requests, step)
                pushed.append(time.monotonic())
                await stream.write(batch)
            await stream.done_writing()
            async for _ in stream:
                pass
        return pushed, cpu_s(pid) - cpu, time.monotonic() - began


async def paced(rate: float) -> AsyncIterator[int]:
    """The steps, each when it is due."""
    start = time.monotonic()
    for step in range(STEPS):
        await asyncio.sleep(max(0.0, start + step / rate - time.monotonic()))
        yield step


def step_batch(requests: list[str], step: int) -> pb.TokenBatch:
    """One decode step of all streams."""
    finish = model_pb2.FINISH_REASON_LENGTH if step == STEPS - 1 else model_pb2.FINISH_REASON_UNSPECIFIED
    tokens = [
        pb.Token(seq=model_pb2.SeqId(request=request), epoch=1, index=step, token=256 + step, finish=finish)
        for request in requests
    ]
    return pb.TokenBatch(instance="bench", number=step + 1, tokens=tokens)


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def read_stream(port: int) -> list[tuple[int, float]]:
    """One HTTP request; (step, time of its arrival) of every token."""
    body = json.dumps({"model": "bench", "prompt": [1, 2, 3], "max_tokens": STEPS, "stream": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    seen: list[tuple[int, float]] = []
    while data := await reader.read(65536):
        now = time.monotonic()
        seen += [(int(step), now) for step in re.findall(rb'"text":"<(\d+)>', data)]
    writer.close()
    await writer.wait_closed()
    return seen


async def clients(port: int, streams: int) -> None:
    """The client process: prints what every stream saw as one JSON list."""
    seen = await asyncio.gather(*(read_stream(port) for _ in range(streams)))
    sys.stdout.write(json.dumps(seen))


async def start_clients(port: int, streams: int) -> asyncio.subprocess.Process:
    """Start the client process."""
    arguments = ("-m", "benchmarks.gateway", "--clients", str(port), str(streams))
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)


async def delays_s(reader: asyncio.subprocess.Process, pushed: list[float]) -> list[float]:
    """From push to arrival, of all tokens after warm-up. Raises RuntimeError when one is missing or out of order."""
    output, _ = await reader.communicate()
    seen = json.loads(output)
    if any([step for step, _ in stream] != list(range(STEPS)) for stream in seen):
        raise RuntimeError("a stream is not complete")
    return [at - pushed[step] for stream in seen for step, at in stream if step >= WARM_STEPS]


async def measure_direct(streams: int, rate: float) -> float:
    """The median delay in seconds when the source writes the events itself, to the same clients."""
    opened: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        opened.put_nowait(writer)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        reader = await start_clients(server.sockets[0].getsockname()[1], streams)
        writers = [await opened.get() for _ in range(streams)]
        pushed: list[float] = []
        async for step in paced(rate):
            pushed.append(time.monotonic())
            for writer in writers:
                writer.write(DIRECT % step)
        for writer in writers:
            writer.close()
        return statistics.median(await delays_s(reader, pushed))


@dataclass(frozen=True, slots=True)
class Plateau:
    """One measurement."""

    streams: int
    tokens_s: float
    tokens_s_core: float
    p50_ms: float
    p99_ms: float


async def measure(source: Source, sink: str, port: int, pid: int, streams: int, rate: float) -> Plateau:
    """Run one load to its end. Raises RuntimeError when a token is missing, repeated or out of order."""
    reader = await start_clients(port, streams)
    pushed, cpu, seconds = await source.run(sink, streams, rate, pid)
    delays = await delays_s(reader, pushed)
    tokens = streams * (STEPS - WARM_STEPS)
    p99 = statistics.quantiles(delays, n=100)[98]
    return Plateau(streams, tokens / seconds, tokens / cpu, 1e3 * statistics.median(delays), 1e3 * p99)


async def bench(folder: Path) -> list[Row]:
    """Start the gateway and run all loads."""
    direct_ms = 1e3 * await measure_direct(*PLATEAUS[1])
    write_model(folder)
    server, source = grpc.aio.server(), Source(folder)
    add_FrontendServicer_to_server(source, server)
    scheduler, sink = f"unix:{folder}/scheduler", f"unix:{folder}/sink"
    server.add_insecure_port(scheduler)
    await server.start()
    config = {"name": "bench", "listen": "127.0.0.1:0", "scheduler": scheduler, "sink": sink}
    (folder / "gateway.json").write_text(json.dumps(config))
    arguments = ("-m", "aegaeon_gateway", "--config", str(folder / "gateway.json"))
    gateway = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.PIPE)
    try:
        port = await listening_port(gateway)
        plateaus = [await measure(source, sink, port, gateway.pid, streams, rate) for streams, rate in PLATEAUS]
        return rows_of(plateaus, direct_ms)
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


def rows_of(plateaus: list[Plateau], direct_ms: float) -> list[Row]:
    """Latency and tokens per core have their limits at loads without a backlog: a backlog makes tokens cheaper."""
    _, middle, high, _ = plateaus
    load = f"{middle.streams} streams, {middle.tokens_s:.0f} tokens/s"
    rows = [
        Row("streamed tokens per core of the gateway", high.tokens_s_core, "tokens/s", 5000, ">="),
        Row(f"added latency p50, {load}", middle.p50_ms - direct_ms, "ms", 1, "<="),
        Row(f"latency p50 without a gateway, {load}", direct_ms, "ms"),
    ]
    for plateau in plateaus:
        load = f"{plateau.streams} streams, {plateau.tokens_s:.0f} tokens/s"
        rows.append(Row(f"tokens per core, {load}", plateau.tokens_s_core, "tokens/s"))
        rows.append(Row(f"latency p50, {load}", plateau.p50_ms, "ms"))
        rows.append(Row(f"latency p99, {load}", plateau.p99_ms, "ms"))
    return rows


def main() -> int:
    if sys.argv[1:2] == ["--clients"]:
        asyncio.run(clients(int(sys.argv[2]), int(sys.argv[3])))
        return 0
    with tempfile.TemporaryDirectory(prefix="aegaeon-gateway-") as folder:
        return 0 if report("gateway", asyncio.run(bench(Path(folder)))) else 1


if __name__ == "__main__":
    sys.exit(main())
