"""The Lease is renewed in a thread with a loop and a connection of its own.

A look at thousands of ModelPools may keep the operator's loop busy for seconds: that must not cost it the lead.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aegaeon_kube import server
from aegaeon_kube.errors import KubeError
from aegaeon_kube.lease import Leadership, LeaseSettings

_log = logging.getLogger(__name__)


class Lead:
    """Events of the loop that made it: `won` once this process leads, `over` when it leads no more."""

    def __init__(self, settings: LeaseSettings, observe: server.Observer) -> None:
        self.won, self.over = asyncio.Event(), asyncio.Event()
        self._settings, self._observe = settings, observe
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="lease")
        self._started = threading.Event()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Wait for the lead beside everything else."""
        self._thread.start()
        self._started.wait()

    async def end(self) -> None:
        """Let the next one take over at once."""
        if self._own_loop and self._task and not self.over.is_set():
            self._own_loop.call_soon_threadsafe(self._task.cancel)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except asyncio.CancelledError:
            _log.info("the lease is released")
        except KubeError as error:
            _log.error("the lease: %s", error)
        finally:
            self._started.set()
            self._loop.call_soon_threadsafe(self.over.set)

    async def _work(self) -> None:
        self._own_loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._started.set()
        async with server.connect(self._observe) as api:
            leadership = Leadership(api, self._settings)
            await leadership.acquire()
            self._loop.call_soon_threadsafe(self.won.set)
            try:
                await leadership.keep()
            finally:
                await leadership.release()


@asynccontextmanager
async def leading(settings: LeaseSettings, observe: server.Observer) -> AsyncIterator[Lead]:
    """Tries to get the Lease and renews it; released in the end."""
    lead = Lead(settings, observe)
    lead.start()
    try:
        yield lead
    finally:
        await lead.end()
