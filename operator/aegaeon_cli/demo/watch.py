"""The display while the demo runs: the pool's status and the clients' answers so far, side by side."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from rich.console import Console
from rich.live import Live

from aegaeon_cli.demo.traffic import Exchange
from aegaeon_cli.demo.view import line, picture
from aegaeon_cli.status import watch_status
from aegaeon_proto.v1.gateway_pb2 import PoolStatus

STATUS_S = 0.1
REFRESH_S = 0.125
PLAIN_S = 1.0


class Watcher:
    """Holds the newest status; shows it with the exchanges until the `watching` block ends."""

    def __init__(self, scheduler: str, exchanges: Sequence[Exchange], console: Console) -> None:
        self._scheduler = scheduler
        self._exchanges = exchanges
        self._console = console
        self.status = PoolStatus()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """A live picture on a terminal, a line a second elsewhere. The last status stays in `status`."""
        show = self._live if self._console.is_terminal else self._plain
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(show())]
        try:
            yield
            await asyncio.sleep(3 * STATUS_S)  # the status of the last token is on its way
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _follow(self) -> None:
        async for status in watch_status(self._scheduler, STATUS_S):
            self.status = status

    async def _live(self) -> None:
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                await self._every(REFRESH_S, lambda: live.update(picture(self.status, self._exchanges), refresh=True))
            finally:
                live.update(picture(self.status, self._exchanges), refresh=True)

    async def _plain(self) -> None:
        await self._every(PLAIN_S, lambda: print(line(self.status, self._exchanges), flush=True))

    @staticmethod
    async def _every(seconds: float, show: Callable[[], None]) -> None:
        while True:
            show()
            await asyncio.sleep(seconds)
