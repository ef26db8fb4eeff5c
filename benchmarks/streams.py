"""Streams of tokens through a front-end, for the benchmarks of one: the load, the clients, what was measured.

An engine that computes nothing pushes steps of one token per stream at a fixed rate, and clients in another process
read server-sent events from many open connections. Every token's text is its own number, so a client knows when the
engine pushed what it has just received; both share the machine's clock.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

STEPS = 400
WARM_STEPS = 50
FIRST = 256
"""the id of the token whose text is <0>"""
Endpoint = Literal["completions", "chat/completions"]
DIRECT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1763769600,"model":"bench",'
    b'"choices":[{"index":0,"text":"<%d>","logprobs":null,"finish_reason":null}]}\n\n'
)
"""an event as the gateway writes it"""
_BODIES = {"completions": {"prompt": [1, 2, 3]}, "chat/completions": {"messages": [{"role": "user", "content": "hey"}]}}
_OPEN_S = 30
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class Engine(Protocol):
    """The other side of a front-end. `opened`: the ids of the requests that it has sent, each once."""

    opened: asyncio.Queue[str]

    async def push(self, requests: list[str], step: int) -> None:
        """One token for each; the last step ends them."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams get `rate` tokens a second each."""

    streams: int
    rate: float
    endpoint: Endpoint = "completions"


@dataclass(frozen=True, slots=True)
class Plateau:
    """One measurement."""

    load: Load
    tokens_s: float
    tokens_s_core: float
    p50_ms: float
    p99_ms: float
    stream_bytes: float
    """memory that the front-end has more of while they are open, by their number"""


def write_model(directory: Path) -> None:
    """A byte-level vocabulary in which token FIRST + k is the text `<k>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {piece: number for number, piece in enumerate(alphabet)}
    vocabulary |= {f"<{step}>": FIRST + step for step in range(STEPS + 1)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))


async def measure(engine: Engine, port: int, pid: int, load: Load) -> Plateau:
    """Run one load to its end. Raises RuntimeError when a token is missing, repeated or out of order, and
    TimeoutError when a stream is refused."""
    memory = memory_bytes(pid)
    reader = await start_clients(port, load.streams, load.endpoint)
    try:
        async with asyncio.timeout(_OPEN_S):
            requests = [await engine.opened.get() for _ in range(load.streams)]
    except TimeoutError:
        reader.kill()
        raise
    pushed: list[float] = []
    cpu = began = 0.0
    async for step in paced(load.rate):
        if step == WARM_STEPS:
            memory, cpu, began = memory_bytes(pid) - memory, cpu_s(pid), time.monotonic()
        pushed.append(time.monotonic())
        await engine.push(requests, step)
    delays = await delays_s(reader, pushed)
    cpu, seconds = cpu_s(pid) - cpu, time.monotonic() - began
    tokens = load.streams * (STEPS - WARM_STEPS)
    p99 = statistics.quantiles(delays, n=100)[98]
    p50 = statistics.median(delays)
    return Plateau(load, tokens / seconds, tokens / cpu, 1e3 * p50, 1e3 * p99, memory / load.streams)


async def measure_direct(load: Load) -> float:
    """The median delay in milliseconds when the engine writes the events itself, to the same clients."""
    opened: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        opened.put_nowait(writer)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        reader = await start_clients(server.sockets[0].getsockname()[1], load.streams, load.endpoint)
        writers = [await opened.get() for _ in range(load.streams)]
        pushed: list[float] = []
        async for step in paced(load.rate):
            pushed.append(time.monotonic())
            for writer in writers:
                writer.write(DIRECT % step)
        for writer in writers:
            writer.close()
        return 1e3 * statistics.median(await delays_s(reader, pushed))


async def paced(rate: float) -> AsyncIterator[int]:
    """The steps, each when it is due."""
    start = time.monotonic()
    for step in range(STEPS):
        await asyncio.sleep(max(0.0, start + step / rate - time.monotonic()))
        yield step


# ---- the front-end, from outside -----------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process with all its threads, and of those that it has started."""
    return sum(int(ticks) for one in family(pid) for ticks in _stat(one)[11:13]) / _TICKS


def memory_bytes(pid: int) -> int:
    """What they hold in memory."""
    return sum(int(_stat(one)[21]) for one in family(pid)) * _PAGE


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(ProcessLookupError, FileNotFoundError):  # a thread that has just ended
            for child in children.read_text().split():
                yield from family(int(child))


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


# ---- the clients, in their process ---------------------------------------------------------------------------------


async def start_clients(port: int, streams: int, endpoint: Endpoint) -> asyncio.subprocess.Process:
    """Start the client process."""
    arguments = ("-m", "benchmarks.streams", str(port), str(streams), endpoint)
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)


async def delays_s(reader: asyncio.subprocess.Process, pushed: list[float]) -> list[float]:
    """From push to arrival, of all tokens after warm-up. Raises RuntimeError when one is missing or out of order."""
    output, _ = await reader.communicate()
    seen = json.loads(output)
    if any([step for step, _ in stream] != list(range(STEPS)) for stream in seen):
        raise RuntimeError("a stream is not complete")
    return [at - pushed[step] for stream in seen for step, at in stream if step >= WARM_STEPS]


async def clients(port: int, streams: int, endpoint: str) -> None:
    """The client process: prints what every stream saw as one JSON list."""
    seen = await asyncio.gather(*(read_stream(port, endpoint) for _ in range(streams)))
    sys.stdout.write(json.dumps(seen))


async def read_stream(port: int, endpoint: str) -> list[tuple[int, float]]:
    """One HTTP request; (step, time of its arrival) of every token."""
    body = json.dumps({"model": "bench", "max_tokens": STEPS, "stream": True, **_BODIES[endpoint]}).encode()
    head = f"POST /v1/{endpoint} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + body)
    seen: list[tuple[int, float]] = []
    rest = b""
    while data := await reader.read(65536):
        now = time.monotonic()
        lines, newline, rest = (rest + data).rpartition(b"\n")
        seen += [(int(step), now) for step in re.findall(rb"<(\d+)>", lines + newline)]
    writer.close()
    await writer.wait_closed()
    return seen


if __name__ == "__main__":
    asyncio.run(clients(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
