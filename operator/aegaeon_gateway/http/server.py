"""The HTTP side: routes, request ids, and errors in OpenAI's shape whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from aegaeon_gateway.answer.messages import error_body
from aegaeon_gateway.errors import ApiError, fault, overloaded
from aegaeon_gateway.http.access_log import AccessLog
from aegaeon_gateway.http.background import Background
from aegaeon_gateway.http.batches import BatchHandlers
from aegaeon_gateway.http.cors import Cors
from aegaeon_gateway.http.files import FileHandlers
from aegaeon_gateway.http.gateway import TENANT, Gateway
from aegaeon_gateway.http.handlers import Answerer
from aegaeon_gateway.http.kept import KeptResponses
from aegaeon_gateway.http.openapi import description
from aegaeon_gateway.http.record import RECORD, Record
from aegaeon_gateway.http.refusals import Refusals, drop_frames, malformed, of_aiohttp, respond
from aegaeon_gateway.http.request_rules import UPLOADS, request_rules
from aegaeon_gateway.http.traces import traced
from aegaeon_gateway.models.catalog import phase_name, served_length
from aegaeon_gateway.request_id import logged_as
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

log = logging.getLogger(__name__)

_OF_MODELS = {"/tokenize", "/detokenize", "/rerank", "/score"}
_REFUSED = 400  # from there on; `refusals` logs these
_CLIENT_LEFT = 499  # as nginx writes into its log; no client receives it
_RESPONSE_ID = r"{id:[\w.-]{1,128}}"
_ID = r"{id:[A-Za-z0-9_-]{1,128}}"


def make_app(
    gateway: Gateway, refusals: Refusals, access_log: AccessLog, inside: Callable[[], AbstractContextManager[None]]
) -> web.Application:
    """The application with all routes. `inside`: around what goes on behind an answer."""
    cors = Cors(gateway.config.http.cors_origins)
    background = Background(gateway, access_log, inside)
    answerer = Answerer(gateway, background)
    pages, kept = _Pages(gateway), KeptResponses(gateway, background)
    rules = request_rules(gateway.config, cors)
    middlewares = [_recorded(gateway, access_log), _shaped(refusals), rules, cors.preflight, _identifier(gateway)]
    app = web.Application(middlewares=middlewares)
    app.on_response_prepare.append(_headers(cors))
    app.on_cleanup.append(lambda _: background.stop())
    app.router.add_post("/v1/chat/completions", answerer.chat)
    app.router.add_post("/v1/completions", answerer.completions)
    app.router.add_post("/v1/messages", answerer.messages)
    app.router.add_post("/v1/messages/count_tokens", answerer.count_tokens)
    app.router.add_post("/v1/responses", answerer.responses)
    app.router.add_get(f"/v1/responses/{_RESPONSE_ID}", kept.get)
    app.router.add_delete(f"/v1/responses/{_RESPONSE_ID}", kept.delete)
    app.router.add_get(f"/v1/responses/{_RESPONSE_ID}/input_items", kept.input_items)
    app.router.add_post(f"/v1/responses/{_RESPONSE_ID}/cancel", kept.cancel)
    app.router.add_post("/v1/embeddings", answerer.embeddings)
    _add_batches(app, gateway)
    for prefix in ("", "/v1"):
        app.router.add_post(f"{prefix}/rerank", answerer.rerank)
        app.router.add_post(f"{prefix}/score", answerer.score)
    app.router.add_post("/tokenize", answerer.tokenize)
    app.router.add_post("/detokenize", answerer.detokenize)
    app.router.add_get("/v1/models", pages.models)
    app.router.add_get("/v1/models/", pages.models)
    app.router.add_get("/v1/models/{id:.+}", pages.model)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/ping", pages.health)
    app.router.add_get("/", pages.root)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/openapi.json", pages.openapi)
    app.router.add_get("/version", pages.version)
    return app


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


class _Pages:
    """Everything that is not a completion."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._description = description()

    async def models(self, http: web.Request) -> web.Response:
        self._need_catalog()
        tenants, tenant = self._gateway.tenants.current(), http[TENANT]
        visible = [m for m in self._gateway.catalog.models() if tenants.visible(tenant, m.spec.name)]
        return _json({"object": "list", "data": [self._model(model) for model in visible]})

    async def model(self, http: web.Request) -> web.Response:
        self._need_catalog()
        name = http.match_info["id"]
        served = (model.spec.name for model in self._gateway.catalog.models())
        self._gateway.tenants.current().check(http[TENANT], name, served)
        return _json(self._model(self._gateway.catalog.get(name)))

    async def health(self, http: web.Request) -> web.Response:
        """503 until the model catalog and the tenants are loaded; after that 200 in any case."""
        known = self._gateway.known
        scheduler = "attached" if self._gateway.link.connected else "unavailable"
        return _json({"status": "ok" if known else "starting", "scheduler": scheduler}, status=200 if known else 503)

    async def metrics(self, http: web.Request) -> web.Response:
        """For endpoint pickers alone; what names models and tenants is on the port for metrics."""
        text = self._gateway.metrics.picker_page(*self._gateway.link.load())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def openapi(self, http: web.Request) -> web.Response:
        return web.Response(body=self._description, content_type="application/json")

    async def root(self, http: web.Request) -> web.Response:
        """What is here: clients ask it with HEAD whether anything is."""
        return _json({"service": "aegaeon", "models": "/v1/models", "description": "/openapi.json"})

    async def version(self, http: web.Request) -> web.Response:
        return _json({"version": version("aegaeon")})

    def _need_catalog(self) -> None:
        if not self._gateway.catalog.known:
            raise overloaded("The list of models is not loaded yet; try again.")

    def _model(self, model: ModelStatus) -> dict[str, Any]:
        source = model.spec.source
        unusable = self._gateway.texts.failure(source)
        root = source.hub.repository if source.WhichOneof("kind") == "hub" else model.parent or model.spec.name
        return {
            "id": model.spec.name,
            "object": "model",
            "created": model.spec.created_s or self._gateway.started,
            "owned_by": "aegaeon",
            "root": root,
            "parent": model.parent or None,
            "max_model_len": served_length(model) or self._gateway.texts.max_positions(source) or None,
            "aegaeon": {
                "phase": "failed" if unusable else phase_name(model),
                "reason": unusable or model.reason,
                "task": model.spec.task or model.footprint.task or None,
            },
        }


def _json(data: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type="application/json")


def _headers(cors: Cors) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """What every answer has, refusals as well."""

    async def add(http: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "aegaeon"
        response.headers.update(cors.headers(http.headers.get("Origin")))
        if (record := http.get(RECORD)) is not None:
            response.headers.update(record.headers)

    return add


def _recorded(gateway: Gateway, access_log: AccessLog) -> Middleware:
    """Every request has an id, in its log lines, its span and the access log."""

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        record = request[RECORD] = Record.of(request)
        with logged_as(record.log_id), traced(gateway.tracing.tracer, request, record):
            try:
                response = await handler(request)
                record.status, record.outcome = response.status, record.outcome or "ok"
                if request.method == "POST" and response.status < _REFUSED:
                    log.info("%s %d after %.3f s", record.endpoint, response.status, record.seconds)
                return response
            except (asyncio.CancelledError, ConnectionError):
                record.status, record.outcome = _CLIENT_LEFT, "cancelled"
                log.info("%s, the client left", record.endpoint)
                raise
            finally:
                access_log.add(record)

    return record


def _shaped(refusals: Refusals) -> Middleware:
    """Whatever goes wrong has an answer of one shape and a line of log."""

    @web.middleware
    async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
        record = request[RECORD]
        try:
            return await handler(request)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except (ApiError, web.HTTPException, web.RequestPayloadError) as error:
            refused = _as_api_error(request, error)
            drop_frames(error)
        except Exception:  # whatever it is, its client gets an answer and the log the traceback
            log.exception("a fault of the gateway")
            refused = fault(record.id)
        record.outcome = refused.outcome
        refusals.refused(refused, endpoint=record.endpoint, address=record.address)
        return respond(refused, error_body(refused) if request.path.startswith("/v1/messages") else None)

    return shape


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


def _identifier(gateway: Gateway) -> Middleware:
    """A client of what models are asked for is authenticated before anything else is looked at."""

    @web.middleware
    async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/") or request.path in _OF_MODELS:
            request[TENANT] = gateway.tenants.current().identify(_credential(request))
        return await handler(request)

    return identify
