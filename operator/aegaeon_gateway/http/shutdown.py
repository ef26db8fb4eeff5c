"""Graceful shutdown: connections drain without a client finding its connection closed.

A client without notice sends its next request on the connection that it has. Where that is closed behind the
last byte of an answer, the request meets the end on its way: an error that the client may not repeat blindly. So
a gateway that shuts down says `Connection: close` with every answer from then on, and keeps the connections of older
answers until their clients came back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web

COME_BACK_S = 0.5  # until who got the end of an answer has sent the next request, if it is sent at once
CUT_S = 1.0  # for what is cancelled to end


class GracefulShutdown:
    """Counts what is being answered, in the background too; once it has begun, every answer ends its connection."""

    def __init__(self) -> None:
        self._begun = False
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def begun(self) -> bool:
        return self._begun

    def attach(self, app: web.Application) -> None:
        """Look at every answer of `app`, which has not been started."""
        app.on_response_prepare.append(self._say)

    async def drain(self, withdraw_s: float, drain_s: float, refuse: Callable[[], None]) -> None:
        """Serve on for `withdraw_s`, `refuse` new connections then, and return when no request is in flight any more.

        That is `drain_s` later at most; who is inside then is to be cut.
        """
        self._begun = True
        may_come_back = not self._empty.is_set()
        await asyncio.sleep(withdraw_s)
        refuse()
        try:
            async with asyncio.timeout(drain_s):
                while may_come_back or self._inside:
                    await self._empty.wait()
                    may_come_back = False
                    await asyncio.sleep(COME_BACK_S)
        except TimeoutError:
            return

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Around what is to end before the gateway does."""
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def _say(self, request: web.Request, response: web.StreamResponse) -> None:
        if self._begun:
            response.force_close()
            response.headers["Connection"] = "close"
