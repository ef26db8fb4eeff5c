"""The HTTP side: routes, request ids, and errors in OpenAI's shape whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from aegaeon_gateway.answer.messages import error_body
from aegaeon_gateway.errors import ApiError, fault
from aegaeon_gateway.http.access_log import AccessLog
from aegaeon_gateway.http.background import Background
from aegaeon_gateway.http.batches import BatchHandlers
from aegaeon_gateway.http.cors import Cors
from aegaeon_gateway.http.endpoints import ENDPOINTS
from aegaeon_gateway.http.files import FileHandlers
from aegaeon_gateway.http.gateway import TENANT, Gateway
from aegaeon_gateway.http.handlers import EndpointHandler
from aegaeon_gateway.http.kept import KeptResponses
from aegaeon_gateway.http.pages import Pages
from aegaeon_gateway.http.record import RECORD, Record
from aegaeon_gateway.http.refusals import Refusals, drop_frames, malformed, of_aiohttp, respond
from aegaeon_gateway.http.request_rules import UPLOADS, RequestRules
from aegaeon_gateway.http.traces import traced
from aegaeon_gateway.request_id import logged_as

log = logging.getLogger(__name__)

Inside = Callable[[], AbstractContextManager[None]]
_OF_MODELS = frozenset(path for endpoint in ENDPOINTS.values() for path in endpoint.paths)
_REFUSED = 400  # from there on; `refusals` logs these
_CLIENT_LEFT = 499  # as nginx writes into its log; no client receives it
_RESPONSE_ID = r"{id:[\w.-]{1,128}}"
_ID = r"{id:[A-Za-z0-9_-]{1,128}}"


def make_app(gateway: Gateway, refusals: Refusals, access_log: AccessLog, inside: Inside) -> web.Application:
    """The application with all routes. `inside`: around what is answered, and what continues behind an answer."""
    cors = Cors(gateway.config.http.cors_origins)
    background = Background(gateway, access_log, inside)
    app = web.Application(middlewares=[Front(gateway, refusals, access_log, cors, inside).serve])
    app.on_response_prepare.append(_headers(cors))
    app.on_cleanup.append(lambda _: background.stop())
    for endpoint in ENDPOINTS.values():
        for path in endpoint.paths:
            app.router.add_post(path, EndpointHandler(gateway, endpoint, background).handle)
    _add_kept(app, KeptResponses(gateway, background))
    _add_batches(app, gateway)
    _add_pages(app, Pages(gateway))
    return app


def _add_kept(app: web.Application, kept: KeptResponses) -> None:
    app.router.add_get(f"/v1/responses/{_RESPONSE_ID}", kept.get)
    app.router.add_delete(f"/v1/responses/{_RESPONSE_ID}", kept.delete)
    app.router.add_get(f"/v1/responses/{_RESPONSE_ID}/input_items", kept.input_items)
    app.router.add_post(f"/v1/responses/{_RESPONSE_ID}/cancel", kept.cancel)


def _add_pages(app: web.Application, pages: Pages) -> None:
    app.router.add_get("/v1/models", pages.models)
    app.router.add_get("/v1/models/", pages.models)
    app.router.add_get("/v1/models/{id:.+}", pages.model)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/ping", pages.health)
    app.router.add_get("/", pages.root)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/openapi.json", pages.openapi)
    app.router.add_get("/version", pages.version)


def _add_batches(app: web.Application, gateway: Gateway) -> None:
    files, batches = FileHandlers(gateway), BatchHandlers(gateway)
    app.router.add_post(UPLOADS, files.upload)
    app.router.add_get("/v1/files", files.list)
    app.router.add_get(f"/v1/files/{_ID}", files.get)
    app.router.add_get(f"/v1/files/{_ID}/content", files.content)
    app.router.add_delete(f"/v1/files/{_ID}", files.delete)
    app.router.add_post("/v1/batches", batches.create)
    app.router.add_get("/v1/batches", batches.list)
    app.router.add_get(f"/v1/batches/{_ID}", batches.get)
    app.router.add_post(f"/v1/batches/{_ID}/cancel", batches.cancel)


def _headers(cors: Cors) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Add the header fields of every answer, refusals as well."""

    async def add(http: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "aegaeon"
        response.headers.update(cors.headers(http.headers.get("Origin")))
        if (record := http.get(RECORD)) is not None:
            response.headers.update(record.headers)

    return add


class Front:
    """The one middleware: every request has a record, is checked, has a known client, and gets an answer of one shape.

    `inside`: around what a graceful shutdown waits for.
    """

    def __init__(self, gateway: Gateway, refusals: Refusals, access_log: AccessLog, cors: Cors, inside: Inside) -> None:
        self._gateway = gateway
        self._refusals = refusals
        self._access_log = access_log
        self._cors = cors
        self._inside = inside
        self._rules = RequestRules(gateway.config, cors)

    @web.middleware
    async def serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Whatever goes wrong has an answer and a line of log. Raises CancelledError, ConnectionError."""
        record = request[RECORD] = Record.of(request)
        with self._inside(), logged_as(record.log_id), self._recorded(request, record):
            try:
                self._rules.check(request)
                response: web.StreamResponse | None = self._cors.preflight(request)
                if response is None:
                    self._identify(request)
                    response = await handler(request)
            except (asyncio.CancelledError, ConnectionError):
                raise
            except (ApiError, web.HTTPException, web.RequestPayloadError) as error:
                response = self._refused(request, record, _as_api_error(request, error))
                drop_frames(error)
            except Exception:  # whatever it is, its client gets an answer and the log the traceback
                log.exception("a fault of the gateway")
                response = self._refused(request, record, fault(record.id))
            record.status, record.outcome = response.status, record.outcome or "ok"
            if request.method == "POST" and response.status < _REFUSED:
                log.info("%s %d after %.3f s", record.endpoint, response.status, record.seconds)
            return response

    @contextmanager
    def _recorded(self, http: web.Request, record: Record) -> Iterator[None]:
        """Around a request: its span, and its line in the access log."""
        with traced(self._gateway.tracing.tracer, http, record):
            try:
                yield
            except (asyncio.CancelledError, ConnectionError):
                record.status, record.outcome = _CLIENT_LEFT, "cancelled"
                log.info("%s, the client left", record.endpoint)
                raise
            finally:
                self._access_log.add(record)

    def _identify(self, http: web.Request) -> None:
        """Authenticate a client of models before anything else is looked at. Raises UnauthorizedError."""
        if http.path.startswith("/v1/") or http.path in _OF_MODELS:
            http[TENANT] = self._gateway.tenants.current().identify(_credential(http))

    def _refused(self, http: web.Request, record: Record, error: ApiError) -> web.Response:
        record.outcome = error.outcome
        self._refusals.refused(error, endpoint=record.endpoint, address=record.address)
        return respond(error, error_body(error) if http.path.startswith("/v1/messages") else None)


def _as_api_error(request: web.Request, error: ApiError | web.HTTPException | web.RequestPayloadError) -> ApiError:
    match error:
        case ApiError():
            return error
        case web.HTTPException():
            return of_aiohttp(error, f"{request.method} {request.path}")
        case _:
            return malformed(error)


def _credential(request: web.Request) -> str:
    """The Authorization header, or what Anthropic's clients send in its place."""
    key = request.headers.get("X-Api-Key", "")
    return request.headers.get("Authorization", "") or (f"Bearer {key}" if key else "")
