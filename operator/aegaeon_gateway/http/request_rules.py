"""Rules that a request meets before its body is read: JSON, as it is, from a program and not from a web page.

A web page may make its visitor's browser send a POST of a few simple content types anywhere, and reach a server on
localhost under a name of its own (DNS rebinding). Both end here, but for pages of origins that cors.py allows.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection

from aiohttp import HttpVersion10, HttpVersion11, web
from yarl import URL

from aegaeon_gateway.config import GatewayConfig
from aegaeon_gateway.errors import BodyTooLargeError, HttpError
from aegaeon_gateway.http.cors import Cors

UPLOADS = "/v1/files"
"""the one path whose bodies are forms; its handler bounds them"""
_HINT = "send the JSON as it is with Content-Type: application/json"


class RequestRules:
    """Checks the header of a request."""

    def __init__(self, config: GatewayConfig, cors: Cors) -> None:
        self._cors = cors
        self._local = _is_local(config.address[0])
        self._names = frozenset(name.lower() for name in config.http.allowed_hosts)
        self._max_body_bytes = config.max_body_bytes

    def check(self, request: web.Request) -> None:
        """Raises HttpError, BodyTooLargeError."""
        if request.version not in (HttpVersion10, HttpVersion11):
            raise HttpError("Only HTTP/1.1 and HTTP/1.0 are spoken here.", status=505, code="http_version")
        if self._local:
            _check_names(request, self._names, self._cors)
        if request.method == "POST" and request.match_info.http_exception is None:
            if request.path == UPLOADS or not request.can_read_body:
                _check_page(request, self._cors)
            if request.can_read_body or not request.path.endswith("/cancel"):
                _check_body(request, self._max_body_bytes)


def _check_body(request: web.Request, max_body_bytes: int) -> None:
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"Compressed bodies are not read; {_HINT}."
        raise HttpError(message, status=415, code="unsupported_encoding", headers={"Accept-Encoding": "identity"})
    if request.path == UPLOADS:
        _check_form(request)
        return
    charset = request.charset or "utf-8"
    if request.content_type != "application/json" or charset.lower() not in {"utf-8", "utf8", "us-ascii"}:
        message = f"Only bodies of type application/json in UTF-8 are read; {_HINT}."
        raise HttpError(message, status=415, code="unsupported_media_type", headers={"Accept": "application/json"})
    if (request.content_length or 0) > max_body_bytes:
        raise BodyTooLargeError(max_body_bytes)


def _check_form(request: web.Request) -> None:
    if request.content_type != "multipart/form-data":
        message = "Files are uploaded as multipart/form-data."
        raise HttpError(message, status=415, code="unsupported_media_type", headers={"Accept": "multipart/form-data"})


def _check_page(request: web.Request, cors: Cors) -> None:
    """Refuse requests that browsers send for any page without a preflight: forms, and requests without a body."""
    origin = request.headers.get("Origin")
    if origin is None or cors.allows(origin) or origin.partition("://")[2] == request.headers.get("Host"):
        return
    message = "Pages of other sites may not use this gateway (http.cors_origins)."
    raise HttpError(message, status=403, code="foreign_origin")


def _check_names(request: web.Request, names: Collection[str], cors: Cors) -> None:
    """Under which name the client reached this machine, and whose page it is."""
    host = request.headers.get("Host", "")
    if host and not _is_known(f"//{host}", names):
        message = "This gateway listens on localhost and is not known by this name (http.allowed_hosts)."
        raise HttpError(message, status=403, code="unknown_host")
    origin = request.headers.get("Origin")
    if origin is not None and not _is_known(origin, names) and not cors.allows(origin):
        message = "Pages of other sites may not use this gateway (http.allowed_hosts, http.cors_origins)."
        raise HttpError(message, status=403, code="foreign_origin")


def _is_known(url: str, names: Collection[str]) -> bool:
    try:
        host = (URL(url).host or "").lower()
    except ValueError:
        return False
    return _is_local(host) or host in names


def _is_local(host: str) -> bool:
    """localhost, a name below it, or a loopback address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
