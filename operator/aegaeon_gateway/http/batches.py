"""Handlers of /v1/batches, and the way of a batch's line to a model."""

from __future__ import annotations

import logging
import time
import uuid
from typing import cast

import orjson
from aiohttp import web

from aegaeon_gateway.batches.work import Reply
from aegaeon_gateway.errors import (
    ApiError,
    BodyTooLargeError,
    InvalidRequestError,
    ModelChangedError,
    RateLimitedError,
    UnauthorizedError,
    UnavailableError,
    fault,
)
from aegaeon_gateway.http.access_log import AccessLog
from aegaeon_gateway.http.admission import Client
from aegaeon_gateway.http.body import body_of
from aegaeon_gateway.http.endpoints import ENDPOINTS, Endpoint
from aegaeon_gateway.http.exchange import Exchange
from aegaeon_gateway.http.files import answer, cursor_of, kept_for, listed
from aegaeon_gateway.http.gateway import TENANT, Gateway
from aegaeon_gateway.http.intake import Holding, read_body
from aegaeon_gateway.http.record import RECORD, Record
from aegaeon_gateway.http.serve import serve
from aegaeon_gateway.request.batch_schema import BatchRequest
from aegaeon_gateway.request.parse import decoded
from aegaeon_gateway.request_id import logged_as
from aegaeon_gateway.workers.wire import EndpointName

log = logging.getLogger(__name__)

_BODY_BYTES = 64 << 10
_PAGE, _MOST = 20, 100  # batches of a page, as OpenAI's


class BatchHandlers:
    """POST and GET /v1/batches."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        http[RECORD].tenant = tenant
        client = Client(http[TENANT], self._gateway.tenants.current())
        with self._gateway.intake.request(client.owner, shared=client.shared) as holding:
            request = decoded(BatchRequest, await read_body(http, _BODY_BYTES, holding))
        expiry = request.output_expires_after
        output_s = min(int(kept.settings.keep_s), expiry.seconds if expiry else int(kept.settings.keep_s))
        made = await kept.batches.create(
            tenant, request.endpoint, request.input_file_id, request.completion_window, output_s, request.metadata
        )
        kept.wake.set()
        return answer(made)

    async def list(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        return listed(*await kept.batches.page(tenant, cursor_of(http.query, _MOST, _PAGE)))

    async def get(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        return answer(await kept.batches.get(tenant, http.match_info["id"]))

    async def cancel(self, http: web.Request) -> web.Response:
        kept, tenant = kept_for(self._gateway, http)
        return answer(await kept.batches.cancel(tenant, http.match_info["id"]))


class LineAsker:
    """Implements Asker: a line is a request of its tenant, within its grants and quotas of now."""

    def __init__(self, gateway: Gateway, access_log: AccessLog, defer_s: float) -> None:
        self._gateway = gateway
        self._access_log = access_log
        self._defer_s = defer_s

    async def ask(self, tenant: str, endpoint: str, body: bytes) -> Reply:
        """See Asker."""
        record = Record(uuid.uuid4().hex, None, "POST", f"batch {endpoint}", "", time.monotonic())
        with logged_as(record.log_id):
            try:
                reply = await self._reply(record, tenant, ENDPOINTS[cast(EndpointName, endpoint)], body)
                record.status, record.outcome = reply.status, record.outcome or "ok"
            finally:
                self._access_log.add(record)
        return reply

    async def _reply(self, record: Record, tenant: str, endpoint: Endpoint, body: bytes) -> Reply:
        directory = self._gateway.tenants.current()
        try:
            known = directory.named(tenant)
            if known is None:
                raise UnauthorizedError("The tenant of this batch is not known here any more.")
            exchange = Exchange(self._gateway, endpoint, Client(known, directory), record, self._defer_s)
            return Reply(200, record.id, await serve(exchange, Line(body)))
        except (UnavailableError, RateLimitedError, ModelChangedError) as error:
            record.outcome = error.outcome
            again_s = 0.0 if isinstance(error, ModelChangedError) else error.retry_after_s
            return Reply(error.status, record.id, orjson.dumps(error.body()), again_s or 0.0, failed=again_s is None)
        except ApiError as error:
            refused = error
        except Exception:  # whatever it is, the line gets an answer and the log the traceback
            log.exception("a fault of the gateway")
            refused = fault(record.id)
        record.outcome = refused.outcome
        return Reply(refused.status, record.id, orjson.dumps(refused.body()))


class Line:
    """Implements Caller and Writer: a line of a batch, whose answer is the bytes of a body."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def read(self, most_bytes: int, holding: Holding) -> bytearray:
        if len(self._body) > most_bytes:
            raise BodyTooLargeError(most_bytes)
        holding.hold(len(self._body))
        return bytearray(self._body)

    def writer(self, exchange: Exchange) -> Line:
        if exchange.request.options.stream:
            message = "Answers to lines of batches are no streams."
            raise InvalidRequestError(message, param="stream", code="invalid_value")
        return self

    async def detach(self, exchange: Exchange) -> bytes:
        message = "Lines of batches are answered in the background in any case."
        raise InvalidRequestError(message, param="background", code="invalid_value")

    async def render(self, exchange: Exchange) -> bytes:
        return await body_of(exchange)
