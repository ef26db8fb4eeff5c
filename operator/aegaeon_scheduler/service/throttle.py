"""Bounds how many messages of engines one pass of the event loop handles; the others wait, in the order they came.

grpc.aio reads or writes one message of a stream in two passes. Without the bound a pass handles what every engine has
sent: with hundreds of them a tenth of a second, in which a gateway has one message read or written. So what is late
waits here, where it can be measured, and gateways are served meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque

PER_PASS = 16
"""some 5 ms of work on a slow core"""


class Throttle:
    """A queue for messages that take up the event loop."""

    def __init__(self) -> None:
        self._left = PER_PASS
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._armed = False

    async def enter(self) -> None:
        """Return at once while the pass has room, else in turn."""
        if self._left:  # then none waits
            self._left -= 1
            self._arm()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._arm()
        await turn

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._begin_pass)

    def _begin_pass(self) -> None:
        self._armed = False
        self._left = PER_PASS
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # its stream may have ended
                turn.set_result(None)
                self._left -= 1
        if self._left < PER_PASS:
            self._arm()
