"""Leader election, in a thread with a loop and a connection of its own.

A reconcile of thousands of ModelPools may block the operator's loop for seconds, which must not lose the Lease.
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
    """The leadership, with events of the creating loop: `won` at its begin, `over` at its end."""

    def __init__(self, settings: LeaseSettings, observe: server.Observer) -> None:
        self.won, self.over = asyncio.Event(), asyncio.Event()
        self._settings, self._observe = settings, observe
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="lease")
        self._started = threading.Event()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the election in its thread."""
        self._thread.start()
        self._started.wait()

    async def end(self) -> None:
        """Release the Lease, so that another process can lead at once."""
        if self._own_loop and self._task and not self.over.is_set():
            self._own_loop.call_soon_threadsafe(self._task.cancel)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except asyncio.CancelledError:
            _log.info("released the Lease")
        except KubeError as error:
            _log.error("Lease: %s", error)
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
    """Acquire and renew the Lease in the background; release it at the end."""
    lead = Lead(settings, observe)
    lead.start()
    try:
        yield lead
    finally:
        await lead.end()
