"""The batches that this gateway works on: it looks for those without a holder and takes their leases."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec

from aegaeon_gateway.batches.keys import BATCHES, OPEN, BatchKeys, leases_of
from aegaeon_gateway.batches.lease import Lease, LeaseLostError, Leases
from aegaeon_gateway.batches.records import Order
from aegaeon_gateway.batches.throttle import TICK_S, Pressure
from aegaeon_gateway.batches.work import Tools, Work
from aegaeon_gateway.errors import UnavailableError

log = logging.getLogger(__name__)

_SWEEP_S = 3600.0


class BatchRunner:
    """Use its `run` for as long as the gateway serves. `pressure`: what online traffic met since it was last
    asked; `wake`: set when there is a new batch."""

    def __init__(self, tools: Tools, holder: str, pressure: Callable[[], Pressure], wake: asyncio.Event) -> None:
        self._tools = tools
        self._leases = Leases(tools.store, holder, tools.settings.lease_s, time.monotonic)
        self._pressure = pressure
        self._running: dict[str, asyncio.Task[None]] = {}
        self._wake = wake

    async def run(self) -> None:
        """Until cancelled; the leases are released then."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._tick())
                group.create_task(self._sweep())
                group.create_task(self._look_again())
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._tools.throttle.tick(self._pressure())

    async def _look_again(self) -> None:
        while True:
            with suppress(UnavailableError):  # it is logged where it is raised
                await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tools.settings.look_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _look(self) -> None:
        entries = await self._tools.store.entries(OPEN)
        self._leases.keep_only({leases_of(entry.key) for entry in entries})
        for entry in entries:
            if len(self._running) >= self._tools.settings.running:
                return
            if entry.key not in self._running and (data := await self._tools.store.get(entry.key)) is not None:
                await self._take(entry.key, msgspec.json.decode(data, type=Order))

    async def _take(self, key: str, order: Order) -> None:
        lease = await self._leases.claim(BatchKeys(order.tenant, order.id).leases)
        if lease is not None:
            task = self._running[key] = asyncio.create_task(self._work(order, lease))
            task.add_done_callback(lambda _: self._ended(key))

    def _ended(self, key: str) -> None:
        del self._running[key]
        self._wake.set()

    async def _work(self, order: Order, lease: Lease) -> None:
        """Whatever ends it early, the batch goes on later: here or at another gateway."""
        log.info("works on batch %s, term %d", order.id, lease.term)
        try:
            await Work(self._tools, order, lease).run()
        except LeaseLostError as error:
            log.warning("batch %s: %s", order.id, error)
        except UnavailableError as error:
            log.warning("batch %s goes on later: %s", order.id, error.message)
            await asyncio.sleep(self._tools.settings.look_s)
        except Exception:  # a defect met in one batch ends none of the others, and is tried again with its lease free
            log.exception("batch %s cannot go on here", order.id)
            await asyncio.sleep(self._tools.settings.lease_s)
        finally:
            with suppress(UnavailableError):
                await lease.release()

    async def _sweep(self) -> None:
        over: set[str] = set()
        while True:
            with suppress(UnavailableError):
                await self._tools.files.sweep()
                over = await sweep_batches(self._tools, over)
            await asyncio.sleep(_SWEEP_S)


async def sweep_batches(tools: Tools, before: Collection[str]) -> set[str]:
    """The folders of batches whose window ended so long ago that their files are gone. Those that were so `before` are
    removed: a clock that was set ahead and back meanwhile has taken none."""
    over = set()
    entries = await tools.store.entries(BATCHES)
    for entry in entries:
        folder, _, name = entry.key.rpartition("/")
        if name != "order.json":
            continue
        data = await tools.store.get(entry.key)
        if data is None:
            continue
        order = msgspec.json.decode(data, type=Order)
        if order.expires_at + tools.settings.keep_s < tools.clock():
            over.add(folder)
            if folder in before:
                await tools.store.delete(*(stored.key for stored in entries if stored.key.startswith(f"{folder}/")))
    return over
