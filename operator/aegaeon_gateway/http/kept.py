"""Responses that are kept: read and deleted by their tenant, and gone on with."""

from __future__ import annotations

import orjson
from aiohttp import web

from aegaeon_gateway.conversations import Kept
from aegaeon_gateway.errors import HttpError, InvalidRequestError
from aegaeon_gateway.http.background import Background
from aegaeon_gateway.http.files import cursor_of, listed
from aegaeon_gateway.http.gateway import TENANT, Gateway
from aegaeon_gateway.request import responses_input
from aegaeon_gateway.request.parse import items_of_history

_PAGE, _MOST = 20, 100  # items of a page, as OpenAI's


class KeptResponses:
    """Handlers of GET and DELETE /v1/responses/{id}, and of its input."""

    def __init__(self, gateway: Gateway, background: Background) -> None:
        self._kept = gateway.conversations
        self._background = background

    async def get(self, http: web.Request) -> web.Response:
        if http.query.get("stream", "false") != "false":
            raise InvalidRequestError("stream: what is kept is no stream; leave it out", param="stream")
        kept = await self._found(http)
        body = await self._background.shown(http[TENANT].name, http.match_info["id"], kept)
        return web.Response(body=body, content_type="application/json")

    async def cancel(self, http: web.Request) -> web.Response:
        kept = await self._found(http)
        if not orjson.loads(kept.response).get("background"):
            message = "Only a response that is generated in the background can be cancelled."
            raise InvalidRequestError(message, code="not_in_background")
        body = await self._background.cancel(http[TENANT].name, http.match_info["id"], kept)
        return web.Response(body=body, content_type="application/json")

    async def input_items(self, http: web.Request) -> web.Response:
        """List the items before its output, of former responses as well."""
        cursor = cursor_of(http.query, _MOST, _PAGE)
        kept = await self._found(http)
        items = items_of_history(kept.conversation)
        response = orjson.loads(kept.response)
        own = 0 if response["status"] == "failed" else len(response["output"])  # what failed is not gone on with
        before = items[: len(items) - own]
        data = responses_input.shown(before, http.match_info["id"])
        return listed(*responses_input.page(data, cursor.limit, cursor.after, newest_first=cursor.newest_first))

    async def delete(self, http: web.Request) -> web.Response:
        id_ = http.match_info["id"]
        if not await self._kept.delete(http[TENANT].name, id_):
            raise _not_found(id_)
        body = orjson.dumps({"id": id_, "object": "response", "deleted": True})
        return web.Response(body=body, content_type="application/json")

    async def _found(self, http: web.Request) -> Kept:
        """Raises HttpError, UnavailableError."""
        kept = await self._kept.get(http[TENANT].name, http.match_info["id"])
        if kept is None:
            raise _not_found(http.match_info["id"])
        return kept


def _not_found(id_: str) -> HttpError:
    return HttpError(f"Response with id {id_!r} not found.", status=404, code="response_not_found")
