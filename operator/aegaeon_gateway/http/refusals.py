"""Refused requests: OpenAI's shape whatever was wrong, counted by endpoint and code, logged at a bounded rate.

Nothing that a client wrote becomes a label of a metric; of what it wrote, only a checked request id gets into the log.
"""

from __future__ import annotations

import http
import logging
import uuid
from typing import Any

import orjson
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from aegaeon_gateway.errors import ApiError, EngineError, HttpError
from aegaeon_gateway.metrics import Metrics

log = logging.getLogger(__name__)


class Refusals:
    """Counts and logs what is not served."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def refused(self, error: ApiError, *, endpoint: str, address: str) -> None:
        """`endpoint` is one of this program's own names."""
        code = error.code or "none"
        self._metrics.refused.labels(endpoint, str(error.status), code).inc()
        log.info("from %s: %s %d %s", address, endpoint, error.status, code)


def drop_frames(error: BaseException) -> None:
    """Free what the frames of a handled error hold: the body, until the garbage collector comes round to the cycle."""
    chain: BaseException | None = error
    while chain is not None:
        chain.__traceback__ = None
        chain = chain.__cause__ or chain.__context__


def respond(error: ApiError, body: dict[str, Any] | None = None, *, close: bool = False) -> web.Response:
    """The answer to a refused request, with OpenAI's body or another; `close`: the connection is not used after it."""
    data = orjson.dumps(body or error.body())
    response = web.Response(body=data, status=error.status, headers=error.headers, content_type="application/json")
    if close:
        response.headers["X-Request-Id"] = uuid.uuid4().hex
        response.headers["Connection"] = "close"
        response.force_close()
    return response


def raw_answer(error: ApiError) -> bytes:
    """The same as bytes, for a connection on which nothing has been parsed."""
    body = orjson.dumps(error.body())
    fields = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **error.headers,
    }
    head = f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + body


def malformed(error: BaseException | None) -> ApiError:
    """The error for a request that aiohttp's parser refuses."""
    if isinstance(error, LineTooLong):
        message = "The request line or a field of the header is too long; send less."
        return HttpError(message, status=431, code="header_too_large")
    reason = str(getattr(error, "message", "")).partition("\n")[0][:100]
    if reason.startswith("Too many headers"):
        return HttpError("The request has too many header fields; send less.", status=431, code="header_too_large")
    return HttpError("This is not a well-formed HTTP/1.1 request.", status=400, code="malformed_request")


def of_aiohttp(error: web.HTTPException, request: str = "") -> ApiError:
    """aiohttp's own refusals: of routes, methods, expectations. `request` is the method and path, for people."""
    if error.status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return EngineError("The gateway failed on this request.")
    headers = {"Allow": ", ".join(sorted(error.allowed_methods))} if isinstance(error, web.HTTPMethodNotAllowed) else {}
    code = error.reason.lower().replace(" ", "_")
    message = f"{request}: {error.reason}" if request else error.reason
    return HttpError(message, status=error.status, code=code, headers=headers)
