"""Files of tenants: JSON Lines that batches read and write. None sees those of another."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

import msgspec

from aegaeon_gateway.batches import keys
from aegaeon_gateway.batches.pages import Cursor, in_order, new_id
from aegaeon_gateway.batches.records import FileRecord
from aegaeon_gateway.batches.settings import BatchSettings
from aegaeon_gateway.batches.store import Store
from aegaeon_gateway.errors import ApiError, BodyTooLargeError, HttpError, InvalidRequestError

Clock = Callable[[], float]


class Files:
    """Owner of the objects below `files/`. Methods raise UnavailableError when the store cannot be reached."""

    def __init__(self, store: Store, settings: BatchSettings, clock: Clock = time.time) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._orphans: set[str] = set()
        self._expired: set[str] = set()

    async def receive(self, tenant: str, pieces: AsyncIterator[bytes]) -> tuple[str, int]:
        """Take a content, which is no file before `add`: its id and bytes. Raises BodyTooLargeError."""
        id_ = new_id("file-", self._clock())
        return id_, await self._store.upload(
            keys.file_content(tenant, id_), _bounded(pieces, self._settings.file_bytes)
        )

    async def forget(self, tenant: str, id_: str) -> None:
        """Delete a content that was received and is not to be a file; `add` may have made it one."""
        await self._store.delete(keys.file_record(tenant, id_), keys.file_content(tenant, id_))

    async def add(self, tenant: str, id_: str, nbytes: int, filename: str, keep_s: float) -> FileRecord:
        """Make a file of what was received. Raises InvalidRequestError beyond the tenant's bounds."""
        await self._check_room(tenant)
        return await self._record(tenant, id_, nbytes, filename, "batch", keep_s)

    async def write(self, tenant: str, id_: str, filename: str, lines: AsyncIterator[bytes], keep_s: float) -> None:
        """A file that a batch writes. Without a line there is none."""
        nbytes = await self._store.upload(keys.file_content(tenant, id_), lines)
        if nbytes:
            await self._record(tenant, id_, nbytes, filename, "batch_output", keep_s)
        else:
            await self.forget(tenant, id_)

    async def _record(
        self, tenant: str, id_: str, nbytes: int, filename: str, purpose: str, keep_s: float
    ) -> FileRecord:
        now = int(self._clock())
        record = FileRecord(id_, nbytes, now, now + int(keep_s), filename, purpose)
        await self._store.put(keys.file_record(tenant, id_), msgspec.json.encode(record))
        return record

    async def get(self, tenant: str, id_: str) -> FileRecord:
        """Raises HttpError (404)."""
        record = await self._found(keys.file_record(tenant, id_))
        if record is None:
            raise not_found("file", id_)
        return record

    def content(self, tenant: str, id_: str) -> AsyncIterator[bytes]:
        """In pieces."""
        return self._store.stream(keys.file_content(tenant, id_))

    async def part(self, tenant: str, id_: str, start: int, nbytes: int) -> bytes | None:
        """Read a part of its content; None when it was deleted."""
        return await self._store.part(keys.file_content(tenant, id_), start, nbytes)

    async def page(self, tenant: str, cursor: Cursor, purpose: str | None = None) -> tuple[list[FileRecord], bool]:
        """A page of a tenant's files, of one purpose or of any, and whether there are more."""
        entries = await self._store.entries(keys.files_of(tenant))
        names = [entry.key.rpartition("/")[2] for entry in entries if entry.key.endswith(keys.RECORD)]
        records: list[FileRecord] = []
        for id_ in in_order([name.removesuffix(keys.RECORD) for name in names], cursor):
            record = await self._found(keys.file_record(tenant, id_))
            if record is not None and purpose in (None, record.purpose):
                records.append(record)
            if len(records) > cursor.limit:
                break
        return records[: cursor.limit], len(records) > cursor.limit

    async def delete(self, tenant: str, id_: str) -> None:
        """Raises HttpError (404)."""
        await self.get(tenant, id_)
        await self._store.delete(keys.file_record(tenant, id_), keys.file_content(tenant, id_))

    async def sweep(self) -> None:
        """Remove the files of all tenants whose time is over, and contents that are no files or not even whole: the
        gateway that received them was killed. Each only when the last sweep saw it so: a clock that was set ahead and
        back meanwhile has taken nothing for good."""
        await self._store.sweep()
        stored = {entry.key for entry in await self._store.entries(keys.FILES)}
        expired = {key for key in stored if key.endswith(keys.RECORD) and await self._is_over(key)}
        for key in expired & self._expired:
            await self._store.delete(key, key.removesuffix(keys.RECORD) + keys.CONTENT)
        self._expired = expired
        contents = (key.removesuffix(keys.CONTENT) for key in stored if key.endswith(keys.CONTENT))
        orphans = {name for name in contents if name + keys.RECORD not in stored}
        await self._store.delete(*(name + keys.CONTENT for name in orphans & self._orphans))
        self._orphans = orphans

    async def _is_over(self, key: str) -> bool:
        data = await self._store.get(key)
        return data is not None and msgspec.json.decode(data, type=FileRecord).expires_at <= self._clock()

    async def _found(self, key: str) -> FileRecord | None:
        data = await self._store.get(key)
        record = None if data is None else msgspec.json.decode(data, type=FileRecord)
        return record if record is not None and record.expires_at > self._clock() else None

    async def _check_room(self, tenant: str) -> None:
        settings = self._settings
        entries = await self._store.entries(keys.files_of(tenant))
        if sum(entry.key.endswith(keys.RECORD) for entry in entries) >= settings.tenant_files:
            raise _full(f"{settings.tenant_files} files")
        if sum(entry.nbytes for entry in entries) > settings.tenant_bytes:  # this one's content is there already
            raise _full(f"{settings.tenant_bytes} bytes of files")


async def _bounded(pieces: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    nbytes = 0
    async for piece in pieces:
        nbytes += len(piece)
        if nbytes > most_bytes:
            raise BodyTooLargeError(most_bytes)
        yield piece


def _full(what: str) -> InvalidRequestError:
    return InvalidRequestError(f"You have {what}, which is all that is kept; delete some.", code="storage_full")


def not_found(kind: str, id_: str) -> ApiError:
    """404, also for what is another tenant's."""
    return HttpError(f"No such {kind}: {id_!r}.", status=404, code=f"{kind}_not_found")
