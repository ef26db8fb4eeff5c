"""A real Envoy in front of a real picker process and of servers that tell what reached them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass(slots=True)
class Echo:
    """A server that answers what it was asked, or streams as many events as the client waits for."""

    port: int = 0
    seen: list[str] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path)
        if request.path == "/stream":
            return await self._stream(request)
        body = await request.read()
        return web.json_response({"port": self.port, "bytes": len(body), "headers": dict(request.headers)})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        await self.more.wait()
        await response.write(b"data: second\n\n")
        return response


@asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_route("*", "/{tail:.*}", server.answer)
    async with TestServer(app) as listening:
        assert listening.port is not None
        server.port = listening.port
        yield server


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened
