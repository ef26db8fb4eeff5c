"""What the endpoint picker adds to a request, and what a streamed chunk costs in it.

A real Envoy with two listeners on one pool: one asks the picker over TLS, one does not. Requests go to both in turn, so
the difference is the picker's. Then many streams send chunks at a fixed pace and the picker's processor time is read.
Where GIE's reference picker was built and an API server is up (`make reference-picker cluster-up NODES=0`), it takes
turns with ours behind an Envoy of its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from benchmarks.report import Row, report
from e2e.envoy import Way, way
from e2e.envoy.reference import find_reference, reference_way

REQUESTS = 600
WARM = 50
STREAMS, CHUNKS, PACE_S = 32, 150, 0.02
ADDED_MS, CHUNKS_PER_S = 2.5, 3000.0
BESIDE_REFERENCE = 1.5
TICKS = os.sysconf("SC_CLK_TCK")
# GIE's picker reads paths and bodies as vLLM's, and asks its endpoints for these figures all the time.
PATH = "/v1/chat/completions"
CHAT = {"model": "bench", "messages": [{"role": "user", "content": "Who is next?"}]}
METRICS = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0\n"


async def _answer(request: web.Request) -> web.StreamResponse:
    if request.path == "/metrics":
        return web.Response(text=METRICS)
    if not (await request.json()).get("stream"):
        return web.json_response({"ok": True})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number in range(CHUNKS):
        await response.write(b"data: %d\n\n" % number)
        await asyncio.sleep(PACE_S)
    return response


@asynccontextmanager
async def _pool() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", _answer)
    async with TestServer(app) as server:
        assert server.port is not None
        yield server.port


async def _post(session: aiohttp.ClientSession, url: str) -> float:
    """Milliseconds until the whole answer is here."""
    began = time.perf_counter()
    async with session.post(url + PATH, json=CHAT) as response:
        await response.read()
        response.raise_for_status()
    return (time.perf_counter() - began) * 1e3


async def _latency(session: aiohttp.ClientSession, urls: list[str]) -> list[list[float]]:
    """Of each way, in turn: the n-th figures of all are of the same moment."""
    taken: list[list[float]] = [[] for _ in urls]
    for number in range(REQUESTS + WARM):
        round_of_all = [await _post(session, url) for url in urls]
        if number >= WARM:
            for figures, figure in zip(taken, round_of_all, strict=True):
                figures.append(figure)
    return taken


async def _stream(session: aiohttp.ClientSession, url: str) -> int:
    """Chunks that arrived."""
    async with session.post(url + PATH, json=CHAT | {"stream": True}) as response:
        return sum([1 async for line in response.content if line.startswith(b"data")])


async def _chunks_per_core(session: aiohttp.ClientSession, url: str, pid: int) -> tuple[int, float]:
    """(chunks that came through, chunks in a second of the picker's processor time)."""
    before = _processor_s(pid)
    counts = await asyncio.gather(*(_stream(session, url) for _ in range(STREAMS)))
    return sum(counts), sum(counts) / max(_processor_s(pid) - before, 1 / TICKS)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@asynccontextmanager
async def _ways(folder: Path, port: int) -> AsyncIterator[list[Way]]:
    """With our picker, and with GIE's where it can be had."""
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(way(folder, port, tls="selfSigned"))]
        if (reference := find_reference()) is not None:
            (folder / "reference").mkdir()
            made.append(await stack.enter_async_context(reference_way(reference, folder / "reference", port)))
        yield made


async def measure() -> list[Row]:
    """All figures, in one run."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            _pool() as port,
            _ways(Path(folder), port) as ways,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            taken = await _latency(session, [url for each in ways for url in (each.plain_url, each.url)])
            carried = [await _chunks_per_core(session, each.url, each.picker.pid) for each in ways]
    rows = _ours(taken[0], taken[1], *carried[0])
    if len(ways) == 1:
        print("GIE's reference picker is not beside it: `make reference-picker cluster-up NODES=0` first", flush=True)
        return rows
    return rows + _beside(_added(*taken[:2]), _added(*taken[2:]), carried[1][1])


def _ours(without: list[float], with_picker: list[float], arrived: int, per_core: float) -> list[Row]:
    return [
        Row("Envoy without picker, p50", statistics.median(without), "ms"),
        Row("with picker over TLS, p50", statistics.median(with_picker), "ms"),
        Row("with picker over TLS, p99", statistics.quantiles(with_picker, n=100)[98], "ms"),
        Row("the picker adds, p50", _added(without, with_picker), "ms", ADDED_MS, "<="),
        Row("streamed chunks that arrived", arrived, "chunks", STREAMS * CHUNKS),
        Row("chunks in a second of one core", per_core, "chunks/s", CHUNKS_PER_S),
    ]


def _beside(ours_ms: float, reference_ms: float, reference_per_core: float) -> list[Row]:
    return [
        Row("the picker adds, beside GIE's v1.5.0 picker", ours_ms, "ms", reference_ms, "<=", BESIDE_REFERENCE),
        Row("GIE's picker: chunks in a second of one core", reference_per_core, "chunks/s"),
    ]


def _added(without: list[float], with_picker: list[float]) -> float:
    return statistics.median(b - a for a, b in zip(without, with_picker, strict=True))


def main() -> None:
    sys.exit(0 if report("picker", asyncio.run(measure())) else 1)


if __name__ == "__main__":
    main()
