"""The handler of a POST that a model answers, and its client as the caller of an exchange."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from aiohttp import web

from aegaeon_gateway.errors import ApiError, fault
from aegaeon_gateway.http.admission import Client
from aegaeon_gateway.http.background import Background
from aegaeon_gateway.http.body import BodyWriter
from aegaeon_gateway.http.endpoints import Endpoint
from aegaeon_gateway.http.event_stream import StreamWriter
from aegaeon_gateway.http.exchange import Exchange, Writer
from aegaeon_gateway.http.gateway import TENANT, Gateway
from aegaeon_gateway.http.intake import Holding, read_body
from aegaeon_gateway.http.record import RECORD
from aegaeon_gateway.http.serve import serve, serve_by_worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndpointHandler:
    """Handles the POSTs to one endpoint."""

    gateway: Gateway
    endpoint: Endpoint
    background: Background

    async def handle(self, http: web.Request) -> web.StreamResponse:
        """Raises ApiError while no status is out."""
        caller = HttpCaller(http, self.background)
        exchange = Exchange(self.gateway, self.endpoint, _client(self.gateway, http), http[RECORD])
        if self.endpoint.answered_by_worker:
            body = await serve_by_worker(exchange, caller)
            return web.Response(body=body, content_type="application/json")
        try:
            return await serve(exchange, caller)
        except ApiError as error:
            if not caller.stream.opened:
                raise
            return await caller.stream.fail(error)
        except ConnectionError:
            raise
        except Exception:  # a second status line would be read as part of the stream, which never ends
            if not caller.stream.opened:
                raise
            log.exception("a fault of the gateway in a stream")
            return await caller.stream.fail(fault(exchange.record.id))


class HttpCaller:
    """Implements Caller: an HTTP client."""

    def __init__(self, http: web.Request, background: Background) -> None:
        self._http = http
        self._background = background
        self.stream = StreamWriter(http)

    async def read(self, most_bytes: int, holding: Holding) -> bytearray:
        return await read_body(self._http, most_bytes, holding)

    def writer(self, exchange: Exchange) -> Writer[web.StreamResponse]:
        if not exchange.request.options.stream:
            return BodyWriter()
        self.stream.bind(exchange.renderer)
        return self.stream

    async def detach(self, exchange: Exchange) -> web.StreamResponse:
        return await self._background.start(exchange)


def _client(gateway: Gateway, http: web.Request) -> Client:
    return Client(http[TENANT], gateway.tenants.current())
