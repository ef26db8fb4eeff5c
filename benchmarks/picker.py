"""What the endpoint picker adds to a request, and what a streamed chunk costs in it.

A real Envoy with two listeners on one pool: one asks the picker over TLS, one does not. Requests go to both in turn, so
the difference is the picker's. Then many streams send chunks at a fixed pace and the picker's processor time is read.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import web
from benchmarks.report import Row, report
from e2e.envoy import way

REQUESTS = 600
WARM = 50
STREAMS, CHUNKS, PACE_S = 32, 150, 0.02
ADDED_MS, CHUNKS_PER_S = 2.5, 3000.0
TICKS = os.sysconf("SC_CLK_TCK")


async def _answer(request: web.Request) -> web.StreamResponse:
    await request.read()
    if request.path != "/stream":
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
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield int(runner.addresses[0][1])
    await runner.cleanup()


async def _post(session: aiohttp.ClientSession, url: str) -> float:
    """Milliseconds until the whole answer is here."""
    began = time.perf_counter()
    async with session.post(url, json={"model": "bench"}) as response:
        await response.read()
        response.raise_for_status()
    return (time.perf_counter() - began) * 1e3


async def _latency(session: aiohttp.ClientSession, plain: str, picked: str) -> tuple[list[float], list[float]]:
    """Of each way, in turn."""
    without, with_picker = [], []
    for number in range(REQUESTS + WARM):
        pair = await _post(session, plain), await _post(session, picked)
        if number >= WARM:
            without.append(pair[0])
            with_picker.append(pair[1])
    return without, with_picker


async def _stream(session: aiohttp.ClientSession, url: str) -> int:
    """Chunks that arrived."""
    async with session.post(f"{url}/stream", data=b"{}") as response:
        return sum([1 async for line in response.content if line.startswith(b"data")])


async def _chunks_per_core(session: aiohttp.ClientSession, url: str, pid: int) -> tuple[int, float]:
    """(chunks that came through, chunks in a second of the picker's processor time)."""
    before = _processor_s(pid)
    counts = await asyncio.gather(*(_stream(session, url) for _ in range(STREAMS)))
    return sum(counts), sum(counts) / max(_processor_s(pid) - before, 1 / TICKS)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def measure() -> list[Row]:
    """All figures, from one Envoy."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            _pool() as port,
            way(Path(folder), port, tls="selfSigned") as served,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        ):
            without, with_picker = await _latency(session, served.plain_url, served.url)
            arrived, per_core = await _chunks_per_core(session, served.url, served.picker.pid)
    added = statistics.median(b - a for a, b in zip(without, with_picker, strict=True))
    worst = statistics.quantiles(with_picker, n=100)[98]
    return [
        Row("Envoy without picker, p50", statistics.median(without), "ms"),
        Row("with picker over TLS, p50", statistics.median(with_picker), "ms"),
        Row("with picker over TLS, p99", worst, "ms"),
        Row("the picker adds, p50", added, "ms", ADDED_MS, "<="),
        Row("streamed chunks that arrived", arrived, "chunks", STREAMS * CHUNKS),
        Row("chunks in a second of one core", per_core, "chunks/s", CHUNKS_PER_S),
    ]


def main() -> None:
    sys.exit(0 if report("picker", asyncio.run(measure())) else 1)


if __name__ == "__main__":
    main()
