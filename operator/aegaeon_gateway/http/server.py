"""The HTTP side: routes, request ids, and errors in OpenAI's shape whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from importlib.metadata import version
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from aegaeon_gateway.answer.messages import error_body
from aegaeon_gateway.errors import ApiError, EngineError, overloaded
from aegaeon_gateway.http.gateway import REQUEST_ID, TENANT, Gateway
from aegaeon_gateway.http.handlers import Answerer
from aegaeon_gateway.http.kept import KeptResponses
from aegaeon_gateway.http.openapi import description
from aegaeon_gateway.http.refusals import Refusals, drop_frames, malformed, of_aiohttp, respond
from aegaeon_gateway.http.request_rules import request_rules
from aegaeon_gateway.models.catalog import phase_name, served_length
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

log = logging.getLogger(__name__)

_CLIENT_ID: web.RequestKey[str | None] = web.RequestKey("client_id", str)
_OF_MODELS = {"/tokenize", "/detokenize", "/rerank", "/score"}
_RESPONSE_ID = r"{id:[\w.-]{1,128}}"
_ACCEPTED_ID = re.compile(r"[\x21-\x7e]{1,128}")


def make_app(gateway: Gateway, refusals: Refusals) -> web.Application:
    """The application with all routes."""
    answerer = Answerer(gateway)
    pages, kept = _Pages(gateway), KeptResponses(gateway)
    middlewares = [_shaped(refusals), request_rules(gateway.config), _identifier(gateway)]
    app = web.Application(middlewares=middlewares)
    app.on_response_prepare.append(_name_request)
    app.router.add_post("/v1/chat/completions", answerer.chat)
    app.router.add_post("/v1/completions", answerer.completions)
    app.router.add_post("/v1/messages", answerer.messages)
    app.router.add_post("/v1/messages/count_tokens", answerer.count_tokens)
    app.router.add_post("/v1/responses", answerer.responses)
    app.router.add_get(f"/v1/responses/{_RESPONSE_ID}", kept.get)
    app.router.add_delete(f"/v1/responses/{_RESPONSE_ID}", kept.delete)
    app.router.add_post("/v1/embeddings", answerer.embeddings)
    for prefix in ("", "/v1"):
        app.router.add_post(f"{prefix}/rerank", answerer.rerank)
        app.router.add_post(f"{prefix}/score", answerer.score)
    app.router.add_post("/tokenize", answerer.tokenize)
    app.router.add_post("/detokenize", answerer.detokenize)
    app.router.add_get("/v1/models", pages.models)
    app.router.add_get("/v1/models/{id:.+}", pages.model)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/openapi.json", pages.openapi)
    app.router.add_get("/version", pages.version)
    return app


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
        """503 until the scheduler has told which models there are and who may use them; after that 200 in any case."""
        known = self._gateway.known
        scheduler = "attached" if self._gateway.link.connected else "unavailable"
        return _json({"status": "ok" if known else "starting", "scheduler": scheduler}, status=200 if known else 503)

    async def metrics(self, http: web.Request) -> web.Response:
        """For endpoint pickers alone; what names models and tenants is on the port for metrics."""
        text = self._gateway.metrics.picker_page(*self._gateway.link.load())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def openapi(self, http: web.Request) -> web.Response:
        return web.Response(body=self._description, content_type="application/json")

    async def version(self, http: web.Request) -> web.Response:
        return _json({"version": version("aegaeon")})

    def _need_catalog(self) -> None:
        if not self._gateway.catalog.known:
            raise overloaded("The list of models is not loaded yet; try again.")

    def _model(self, model: ModelStatus) -> dict[str, Any]:
        source = model.spec.source
        unusable = self._gateway.texts.failure(source)
        root = source.hub.repository if source.WhichOneof("kind") == "hub" else model.spec.name
        return {
            "id": model.spec.name,
            "object": "model",
            "created": self._gateway.started,
            "owned_by": "aegaeon",
            "root": root,
            "parent": None,
            "max_model_len": served_length(model) or None,
            "aegaeon": {
                "phase": "failed" if unusable else phase_name(model),
                "reason": unusable or model.reason,
                "task": model.spec.task or model.footprint.task or None,
            },
        }


def _json(data: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, content_type="application/json")


async def _name_request(http: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "aegaeon"
    response.headers["X-Request-Id"] = http.get(_CLIENT_ID) or http.get(REQUEST_ID, "")


def _shaped(refusals: Refusals) -> Middleware:
    """Every request gets an id, and whatever goes wrong an answer of one shape and a line of log."""

    @web.middleware
    async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.monotonic()
        request[REQUEST_ID] = uuid.uuid4().hex
        claimed = request.headers.get("X-Request-Id", "")
        request[_CLIENT_ID] = client_id = claimed if _ACCEPTED_ID.fullmatch(claimed) else None
        ids = f"{request[REQUEST_ID]} (client's {client_id or '-'})"
        try:
            response = await handler(request)
            if request.method == "POST":
                seconds = time.monotonic() - began
                log.info("%s: %s %d after %.3f s", ids, _endpoint(request), response.status, seconds)
            return response
        except (asyncio.CancelledError, ConnectionError):
            log.info("%s: %s, the client left", ids, _endpoint(request))
            raise
        except (ApiError, web.HTTPException, web.RequestPayloadError) as error:
            refused = _as_api_error(request, error)
            drop_frames(error)
        except Exception:  # whatever it is, its client gets an answer and the log the traceback
            log.exception("%s: a fault of the gateway", ids)
            refused = EngineError(f"The gateway failed on this request ({request[REQUEST_ID]}); its log says why.")
        refusals.refused(
            refused,
            endpoint=_endpoint(request),
            address=request.remote or "",
            request=request[REQUEST_ID],
            client_id=client_id,
        )
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


def _endpoint(request: web.Request) -> str:
    """The route as it is written here, never what the client wrote."""
    resource = request.match_info.route.resource
    return resource.canonical if resource else "unknown"


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
