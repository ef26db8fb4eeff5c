"""The HTTP side: routes, request ids, and errors in OpenAI's shape whatever goes wrong."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CONTENT_TYPE_LATEST

from aegaeon_gateway.answer import REQUEST_ID, TENANT, Answerer, Gateway
from aegaeon_gateway.catalog import phase_name, served_length
from aegaeon_gateway.errors import ApiError, EngineError, InvalidRequestError, overloaded
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CLIENT_ID: web.RequestKey[str | None] = web.RequestKey("client_id", str)
_ACCEPTED_ID = re.compile(r"[\x21-\x7e]{1,128}")


def make_app(gateway: Gateway) -> web.Application:
    """The application with all routes."""
    answerer = Answerer(gateway)
    pages = _Pages(gateway)
    app = web.Application(middlewares=[_shape, _identifier(gateway)], client_max_size=gateway.config.max_body_bytes)
    app.on_response_prepare.append(_name_request)
    app.router.add_post("/v1/chat/completions", answerer.chat)
    app.router.add_post("/v1/completions", answerer.completions)
    app.router.add_get("/v1/models", pages.models)
    app.router.add_get("/v1/models/{id:.+}", pages.model)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/metrics", pages.metrics)
    return app


class _Pages:
    """Everything that is not a completion."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

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
        known = self._gateway.catalog.known and self._gateway.tenants.known
        scheduler = "attached" if self._gateway.link.connected else "away"
        return _json({"status": "ok" if known else "starting", "scheduler": scheduler}, status=200 if known else 503)

    async def metrics(self, http: web.Request) -> web.Response:
        text = await self._gateway.metrics.render(*self._gateway.link.load())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _need_catalog(self) -> None:
        if not self._gateway.catalog.known:
            raise overloaded("The scheduler has not told yet which models there are; try again.")

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
            },
        }


def _json(data: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(data), status=status, headers=headers, content_type="application/json")


async def _name_request(http: web.Request, response: web.StreamResponse) -> None:
    response.headers["X-Request-Id"] = http.get(_CLIENT_ID) or http.get(REQUEST_ID, "")


@web.middleware
async def _shape(request: web.Request, handler: Handler) -> web.StreamResponse:
    request[REQUEST_ID] = uuid.uuid4().hex
    claimed = request.headers.get("X-Request-Id", "")
    request[_CLIENT_ID] = claimed if _ACCEPTED_ID.fullmatch(claimed) else None
    try:
        return await handler(request)
    except ApiError as error:
        return _refuse(error)
    except web.HTTPException as error:
        return _refuse(_wrong_route(request, error), status=error.status, headers=_allow(error))
    except ConnectionResetError:
        log.info("%s: the client left", request[REQUEST_ID])
        raise
    except Exception:  # whatever it is, its client gets an answer and the log the traceback
        log.exception("%s: a fault of the gateway", request[REQUEST_ID])
        return _refuse(EngineError(f"The gateway failed on this request ({request[REQUEST_ID]}); its log says why."))


def _identifier(gateway: Gateway) -> Middleware:
    """Whoever asks for anything below /v1 is known before anything else is looked at."""

    @web.middleware
    async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/v1/"):
            request[TENANT] = gateway.tenants.current().identify(request.headers.get("Authorization", ""))
        return await handler(request)

    return identify


def _refuse(error: ApiError, *, status: int | None = None, headers: dict[str, str] | None = None) -> web.Response:
    return _json(error.body(), status=status or error.status, headers={**error.headers, **(headers or {})})


def _wrong_route(http: web.Request, error: web.HTTPException) -> InvalidRequestError:
    code = error.reason.lower().replace(" ", "_")
    return InvalidRequestError(f"{http.method} {http.path}: {error.reason}", code=code)


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": ", ".join(sorted(error.allowed_methods))} if isinstance(error, web.HTTPMethodNotAllowed) else {}
