"""What kubelet and Prometheus ask the scheduler: is it alive, does it serve, how does the pool stand."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from aegaeon_scheduler.errors import ListenError

_FRESH_S = 1.0  # a rendering may be this old: many scrapers cost no more than one


class Pages:
    """GET /healthz, /readyz and /metrics. In the event loop itself: an answer is a sign of its life, and the state that
    a scrape reads is touched there alone. `ready`: whether it serves and is not about to end."""

    def __init__(self, registry: CollectorRegistry, listen: str, ready: Callable[[], bool]) -> None:
        """`listen` is "host:port"."""
        self._registry = registry
        self._listen = listen
        self._ready = ready
        self._rendered = (float("-inf"), b"")
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._is_ready)
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        """Raises ListenError when the port is taken."""
        host, _, port = self._listen.rpartition(":")
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port), shutdown_timeout=0.2).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(f"metrics_listen: cannot serve on {self._listen}: {error.strerror}") from error

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _is_ready(self, _request: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(text="ready\n" if ready else "not serving\n", status=200 if ready else 503)

    async def _scrape(self, _request: web.Request) -> web.Response:
        if time.monotonic() - self._rendered[0] > _FRESH_S:
            self._rendered = (time.monotonic(), generate_latest(self._registry))
        return web.Response(body=self._rendered[1], headers={"Content-Type": CONTENT_TYPE_LATEST})
