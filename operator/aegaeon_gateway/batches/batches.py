"""Batches as their clients see them: made, looked at, cancelled. Which gateway works on one does not matter here."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from aegaeon_gateway.batches.files import Files, not_found
from aegaeon_gateway.batches.keys import BatchKeys, batches_of, open_of
from aegaeon_gateway.batches.pages import Cursor, new_id, page
from aegaeon_gateway.batches.records import COMPLETION_WINDOWS, OVER, Json, Order, Progress, shown
from aegaeon_gateway.batches.settings import BatchSettings
from aegaeon_gateway.batches.store import Store
from aegaeon_gateway.errors import HttpError, InvalidRequestError


class Batches:
    """Owner of orders and of cancellations. Methods raise UnavailableError when the store cannot be reached."""

    def __init__(
        self, store: Store, files: Files, settings: BatchSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._files = files
        self._settings = settings
        self._clock = clock

    async def create(
        self,
        tenant: str,
        endpoint: str,
        input_file_id: str,
        window: str,
        output_s: int,
        metadata: dict[str, str] | None,
    ) -> Json:
        """Raises InvalidRequestError, HttpError (404, 429)."""
        if (await self._files.get(tenant, input_file_id)).purpose != "batch":
            message = "The input file must have been uploaded with purpose 'batch'."
            raise InvalidRequestError(message, param="input_file_id", code="invalid_value")
        if len(await self._store.entries(open_of(tenant))) >= self._settings.tenant_batches:
            message = f"You have {self._settings.tenant_batches} batches that are not over; wait for one of them."
            raise HttpError(message, status=429, code="too_many_batches", headers={"Retry-After": "60"})
        now = self._clock()
        ends = int(now) + COMPLETION_WINDOWS[window]
        id_ = new_id("batch_", now)
        order = Order(id_, tenant, endpoint, input_file_id, window, int(now), ends, output_s, metadata)
        data, at = msgspec.json.encode(order), BatchKeys(tenant, id_)
        await self._store.put(at.open, data)  # first: who takes it writes the order, should this process not get there
        await self._store.put(at.order, data)
        return shown(order, Progress(), 0)

    async def get(self, tenant: str, id_: str) -> Json:
        """Raises HttpError (404)."""
        at = BatchKeys(tenant, id_)
        order = await self._store.get(at.order)
        if order is None:
            raise not_found("batch", id_)
        cancelled = await self._store.get(at.cancelled)
        progress = await progress_of(self._store, at)
        return shown(msgspec.json.decode(order, type=Order), progress, int(cancelled or 0))

    async def page(self, tenant: str, cursor: Cursor) -> tuple[list[Json], bool]:
        """A page of a tenant's batches, and whether there are more."""
        ids, more = page(await self._store.folders(batches_of(tenant)), cursor)
        return [await self.get(tenant, id_) for id_ in ids], more

    async def cancel(self, tenant: str, id_: str) -> Json:
        """Cancel a batch; lines that are answered stay. Raises HttpError (404), InvalidRequestError for one that is
        over."""
        batch = await self.get(tenant, id_)
        if batch["status"] in OVER:
            message = f"The batch is {batch['status']} already."
            raise InvalidRequestError(message, code="batch_over")
        await self._store.create(BatchKeys(tenant, id_).cancelled, str(int(self._clock())).encode())
        return await self.get(tenant, id_)


async def progress_of(store: Store, at: BatchKeys) -> Progress:
    """Read the latest progress that a gateway wrote down."""
    data = await store.get(at.end) or await store.get(at.progress)
    return Progress() if data is None else msgspec.json.decode(data, type=Progress)
