"""Pages for the kubelet and Prometheus: liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

_FRESH_S = 1.0  # a rendering may be this old: many scrapers cost no more than one


class Pages:
    """GET /healthz, /readyz and /metrics. Served by the event loop itself, so that an answer proves that it runs.

    `listen` is "host:port" or "unix:PATH". `ready` is true while the process serves and is not about to end, `unready`
    is the body of /readyz with 503 otherwise. `render` makes the text of /metrics, once a second at most.
    """

    def __init__(
        self, listen: str, ready: Callable[[], bool], unready: str, render: Callable[[], Awaitable[bytes]]
    ) -> None:
        self._listen = listen
        self._ready = ready
        self._unready = unready
        self._render = render
        self._rendered = (float("-inf"), b"")
        self._rendering = asyncio.Lock()
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._is_ready)
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)

    async def start(self) -> None:
        """Listen. Raises OSError, with a sentence as its text, when the port is taken."""
        await self._runner.setup()
        try:
            await self._site().start()
        except OSError as error:
            await self._runner.cleanup()
            raise OSError(f"metrics_listen: cannot serve on {self._listen}: {error.strerror}") from error

    def _site(self) -> web.BaseSite:
        if self._listen.startswith("unix:"):
            return web.UnixSite(self._runner, self._listen.removeprefix("unix:"))
        host, _, port = self._listen.rpartition(":")
        return web.TCPSite(self._runner, host.strip("[]"), int(port))

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _is_ready(self, _request: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(text="ready\n" if ready else f"{self._unready}\n", status=200 if ready else 503)

    async def _scrape(self, _request: web.Request) -> web.Response:
        async with self._rendering:
            if time.monotonic() - self._rendered[0] > _FRESH_S:
                self._rendered = (time.monotonic(), await self._render())
        return web.Response(body=self._rendered[1], headers={"Content-Type": CONTENT_TYPE_LATEST})
