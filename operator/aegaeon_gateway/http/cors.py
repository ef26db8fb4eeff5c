"""Cross-origin resource sharing: which web pages' scripts may use the gateway from a browser. None, unless configured.

Keys are sent by scripts in a header and never by browsers on their own, so credentials are not allowed, and a page can
do no more than its own key allows; a model that is open to every client is open to every page of an allowed origin.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from aiohttp import web

_MAX_AGE_S = 600
_FIELD_NAMES = re.compile(r"[A-Za-z0-9_\-, ]{1,2048}")
_EXPOSED = ", ".join(
    (
        "X-Request-Id",
        "Retry-After",
        "Server-Timing",
        *(f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset") for what in ("requests", "tokens")),
    )
)


class Cors:
    """`origins`: as browsers send them, `https://chat.example.com`; "*": any."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origin.lower() for origin in origins)

    def allows(self, origin: str | None) -> bool:
        """True when scripts of pages of this origin may read answers."""
        return origin is not None and ("*" in self._origins or origin.lower() in self._origins)

    def headers(self, origin: str | None) -> dict[str, str]:
        """The header fields of every answer to a page of this origin; other origins, and none, get only what caches
        need."""
        fields = {"Vary": "Origin"} if self._origins and "*" not in self._origins else {}
        if origin is not None and self.allows(origin):
            fields["Access-Control-Allow-Origin"] = fields["Timing-Allow-Origin"] = origin
            fields["Access-Control-Expose-Headers"] = _EXPOSED
        return fields

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to what browsers ask before the request itself; None for any other request, and for one of
        another origin, which gets 405."""
        known = request.match_info.http_exception
        if (
            request.method == "OPTIONS"
            and self.allows(request.headers.get("Origin"))
            and isinstance(known, web.HTTPMethodNotAllowed)
            and "Access-Control-Request-Method" in request.headers
        ):
            return web.Response(status=204, headers=_allowed(request, known.allowed_methods))
        return None


def _allowed(request: web.Request, methods: Collection[str]) -> dict[str, str]:
    """Any header may be sent: clients have their own, and none of them gives more rights than the key."""
    fields = {"Access-Control-Allow-Methods": ", ".join(sorted(methods)), "Access-Control-Max-Age": str(_MAX_AGE_S)}
    names = request.headers.get("Access-Control-Request-Headers", "")
    if _FIELD_NAMES.fullmatch(names):
        fields["Access-Control-Allow-Headers"] = names
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        fields["Access-Control-Allow-Private-Network"] = "true"
    return fields
