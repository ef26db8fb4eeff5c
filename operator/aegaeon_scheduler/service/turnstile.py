"""Lets so many reports be handled in one pass of the event loop; the others wait their turn, in the order they came.

Without it a pass handles what every engine has sent: with hundreds of them a tenth of a second, in which nothing else
is read, and of each gateway's submissions one. So what is late is late here, where it can be measured.
"""

from __future__ import annotations

import asyncio
from collections import deque

# Some 1.5 ms of work on a slow core. Each stream of a gateway reads, or writes, one message in two passes: with more,
# eight gateways are held up at a few hundred requests a second.
_PER_PASS = 4


class Turnstile:
    """A queue for messages that take up the event loop."""

    def __init__(self) -> None:
        self._left = _PER_PASS
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._armed = False

    async def enter(self) -> None:
        """At once while the pass has room, else when it is one's turn."""
        if self._left and not self._waiting:
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
        self._left = _PER_PASS
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # its stream may have ended
                turn.set_result(None)
                self._left -= 1
        if self._left < _PER_PASS:
            self._arm()
