"""The routes of a gateway beside its OpenAPI description, without a server."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

from aegaeon_gateway.http.openapi import description
from aegaeon_gateway.http.server import make_app

UNDESCRIBED = {  # pages that no client of the API reads, and other spellings of described ones
    "/", "/metrics", "/openapi.json", "/ping", "/v1/models/",
}  # fmt: skip


def operations(document: Any) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def routes() -> set[tuple[str, str]]:
    """Return the methods and paths of the application; HEAD comes with each GET."""
    app = make_app(MagicMock(), MagicMock(), MagicMock(), nullcontext)
    pairs = ((route.method, route.resource) for route in app.router.routes())
    return {(method, resource.canonical) for method, resource in pairs if resource is not None and method != "HEAD"}


def test_every_route_is_described_and_every_description_has_a_route() -> None:
    answered = {(method, path) for method, path in routes() if path not in UNDESCRIBED}
    described = operations(json.loads(description()))
    bare, dead = sorted(answered - described), sorted(described - answered)
    assert not bare, f"routes that http/openapi.py does not describe; a page's operation is in its `_pages`: {bare}"
    assert not dead, f"operations of http/openapi.py without a route in http/server.py: {dead}"
