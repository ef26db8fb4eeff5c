"""Handlers of what no model answers: the list of models, health, metrics, the description of the API."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from aegaeon_gateway.errors import overloaded
from aegaeon_gateway.http.gateway import TENANT, Gateway
from aegaeon_gateway.http.openapi import description
from aegaeon_gateway.models.catalog import phase_name, served_length
from aegaeon_proto.v1.gateway_pb2 import ModelStatus


class Pages:
    """Handlers of GET."""

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
        """Describe the service: clients send HEAD to see that one is there."""
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
