"""Clients that close their sending half while they wait for an answer: some still read, others are gone.

Only a write tells them apart: without a reader the kernel there resets the connection.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from aegaeon_gateway.http.sockets import was_reset

PROBE_S = 5.0  # between two probes

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # allowed any number of times before an answer; clients skip it
_COMMENT = b"3\r\n:\n\n\r\n"  # a chunk that readers of server-sent events skip


class HalfClosed:
    """Probes one connection. `begun`: the answer that is being written; `interim`: the client knows interim answers."""

    __slots__ = ("_probed_at", "_transport", "begun", "interim")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._probed_at = 0.0
        self.begun: web.StreamResponse | None = None
        self.interim = False

    def look(self, now: float) -> None:
        """End the connection when its client is gone, and probe it now and then."""
        if was_reset(self._transport.get_extra_info("socket")):
            self._transport.abort()
        elif now - self._probed_at > PROBE_S:
            self.probe(now)

    def probe(self, now: float) -> None:
        """Send something without a meaning."""
        self._probed_at = now
        if self.begun is None:
            if self.interim:
                self._transport.write(_CONTINUE)
        elif "Transfer-Encoding" in self.begun.headers and self.begun.content_type == "text/event-stream":
            self._transport.write(_COMMENT)
