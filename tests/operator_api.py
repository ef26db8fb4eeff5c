"""An API server of a test's own: real HTTP, and whatever the test wants it to answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from aegaeon_kube.server import ApiServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def api_server(handler: Handler) -> AsyncIterator[ApiServer]:
    app = web.Application(client_max_size=3 << 20)  # of a real one
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server, aiohttp.ClientSession(server.make_url("")) as session:
        yield ApiServer(session, lambda: {"Authorization": "Bearer of-now"})


def refusal(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=status)
