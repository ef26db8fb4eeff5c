"""Handlers of /v1/files: a tenant's JSON Lines, uploaded as forms and downloaded as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import orjson
from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from aegaeon_gateway.batches.files import Files
from aegaeon_gateway.batches.kept import Kept
from aegaeon_gateway.batches.pages import Cursor
from aegaeon_gateway.errors import ApiError, HttpError, InvalidRequestError
from aegaeon_gateway.http.admission import Client
from aegaeon_gateway.http.gateway import TENANT, Gateway
from aegaeon_gateway.request.batch_schema import LONGEST_S, SHORTEST_S

_PIECE_BYTES = 256 << 10
_FIELD_BYTES = 1024
_NAME_CHARACTERS = 255
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
_MOST_FILES = 10_000  # of a page, as OpenAI's


def kept_for(gateway: Gateway, http: web.Request) -> tuple[Kept, str]:
    """The store of files and batches, and the tenant of the request. Raises ApiError where nothing is kept, or the
    client has no key."""
    if gateway.batches is None:
        raise HttpError("This pool keeps no files and batches.", status=404, code="batches_off")
    tenant = http[TENANT]
    Client(tenant, gateway.tenants.current()).check_any()
    return gateway.batches, tenant.name


def cursor_of(query: Mapping[str, str], most: int, default: int) -> Cursor:
    """The page that a query asks for. Raises InvalidRequestError."""
    limit, order = query.get("limit", str(default)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 9 and 1 <= int(limit) <= most):
        raise InvalidRequestError(f"limit: must be 1 to {most}", param="limit", code="invalid_value")
    if order not in ("asc", "desc"):
        raise InvalidRequestError("order: must be asc or desc", param="order", code="invalid_value")
    return Cursor(int(limit), query.get("after", ""), order == "desc")


def listed(data: list[dict[str, object]], more: bool) -> web.Response:
    """A page in OpenAI's form."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    body = {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": more}
    return answer(body)


def answer(body: object) -> web.Response:
    return web.Response(body=orjson.dumps(body), content_type="application/json")


class FileHandlers:
    """POST, GET and DELETE /v1/files."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def upload(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        shared = self._gateway.tenants.current().open_models is not None
        with self._gateway.intake.request(tenant, shared=shared):
            form = Form(kept.files, tenant)
            try:
                await form.read(http)
                keep_s = form.keep_s(kept.settings.keep_s)
                record = await kept.files.add(tenant, form.file, form.nbytes, form.filename, keep_s)
            except BaseException:
                if form.file:
                    await kept.files.forget(tenant, form.file)
                raise
        return answer(record.shown())

    async def list(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        cursor = cursor_of(http.query, _MOST_FILES, _MOST_FILES)
        records, more = await kept.files.page(tenant, cursor, http.query.get("purpose"))
        return listed([record.shown() for record in records], more)

    async def get(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        return answer((await kept.files.get(tenant, http.match_info["id"])).shown())

    async def content(self, http: web.Request) -> web.StreamResponse:
        kept, tenant = kept_for(self._gateway, http)
        record = await kept.files.get(tenant, http.match_info["id"])
        response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
        response.content_length = record.nbytes
        await response.prepare(http)
        missing = record.nbytes
        try:
            async for piece in kept.files.content(tenant, record.id):
                await response.write(piece)
                missing -= len(piece)
        except ApiError as error:  # the status is out: what is cut short is no whole answer
            raise ConnectionAbortedError("the store failed in the middle of a file") from error
        if missing:
            raise ConnectionAbortedError("the file was deleted in the middle of it")
        await response.write_eof()
        return response

    async def delete(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        id_ = http.match_info["id"]
        await kept.files.delete(tenant, id_)
        return answer({"id": id_, "object": "file", "deleted": True})


FORM_ERRORS = (ValueError, AssertionError, LookupError, HttpProcessingError)
"""what aiohttp's reader raises of what is no form: the last of a field's header that is none"""


@dataclass(slots=True)
class Form:
    """A form as it comes: its file goes into the store at once, wherever among the fields it is."""

    files: Files
    tenant: str
    file: str = ""
    filename: str = ""
    nbytes: int = 0
    purpose: str = ""
    anchor: str = ""
    seconds: str = ""

    async def read(self, http: web.Request) -> None:
        """Raises InvalidRequestError naming the field, BodyTooLargeError, UnavailableError."""
        try:
            async for part in await http.multipart():
                await self._take(part)
        except FORM_ERRORS as error:
            raise InvalidRequestError("The body is no well-formed multipart/form-data.", code="invalid_form") from error
        if not self.file:
            raise InvalidRequestError("file is missing", param="file", code="missing_parameter")
        if self.purpose != "batch":
            message = "purpose: must be batch" if self.purpose else "purpose is missing"
            raise InvalidRequestError(message, param="purpose", code="invalid_value")

    def keep_s(self, most_s: float) -> float:
        """Seconds for which the file is to be kept. Raises InvalidRequestError."""
        if not self.anchor and not self.seconds:
            return most_s
        seconds = int(self.seconds) if self.seconds.isascii() and self.seconds.isdecimal() else 0
        if self.anchor != "created_at" or not SHORTEST_S <= seconds <= LONGEST_S:
            message = f"expires_after: must have the anchor created_at and {SHORTEST_S} to {LONGEST_S} seconds"
            raise InvalidRequestError(message, param="expires_after", code="invalid_value")
        return min(seconds, most_s)

    async def _take(self, part: MultipartReader | BodyPartReader | None) -> None:
        if not isinstance(part, BodyPartReader):
            raise ValueError("a form within a form")
        if part.name == "file" and not self.file:
            self.filename = (part.filename or "file.jsonl")[:_NAME_CHARACTERS]
            self.file, self.nbytes = await self.files.receive(self.tenant, _pieces(part))
        elif part.name in _FIELDS:
            value = await _field(part)
            setattr(self, {"purpose": "purpose", "expires_after[anchor]": "anchor"}.get(part.name, "seconds"), value)
        else:
            name = str(part.name)[:64]
            raise InvalidRequestError(
                f"{name} is not a field known here; leave it out", param=name, code="unknown_field"
            )


async def _pieces(part: BodyPartReader) -> AsyncIterator[bytes]:
    while piece := await part.read_chunk(_PIECE_BYTES):
        yield bytes(piece)


async def _field(part: BodyPartReader) -> str:
    data = bytes(await part.read_chunk(_FIELD_BYTES))
    if not part.at_eof() and await part.read_chunk(_FIELD_BYTES):
        raise ValueError("a field that is too long")
    return data.decode()
