"""One client's connection: what it may send before it is served, and how long it may take for it.

aiohttp bounds single header fields and nothing in time but the idle connection. This subclass bounds the header as a
whole, header, body and reader in time, and requests sent ahead; it also serves clients that close their sending half.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from aegaeon_gateway.errors import ApiError, header_too_large, too_slow
from aegaeon_gateway.http.accounts import Accounts
from aegaeon_gateway.http.half_closed import HalfClosed
from aegaeon_gateway.http.refusals import drop_frames, malformed, of_aiohttp, raw_answer, respond
from aegaeon_gateway.http.sockets import OPTIONS, network_of

PROXY_IDLE_S = 3630.0  # longer than proxies keep theirs (Envoy: an hour): they close first, so no request meets the end
LINGER_S = 5.0  # the rest of a refused body is read and dropped for so long, so that its client sees the answer
MAX_AHEAD = 8  # requests on one connection that are not answered; more are not read
MAX_HEADERS = 100
MAX_FIELD_BYTES = 8190

_NEVER_S = 86400.0
_PIECE_BYTES = 2048
_NO_LOG = logging.Logger("no access log", logging.CRITICAL)  # `refusals` and `server` log what is worth it


class Connection(web.RequestHandler):
    """Made by Connections, which calls `look` every second or more often."""

    __slots__ = (
        "_all",
        "_answered",
        "_body_since",
        "_closing_since",
        "_half",
        "_half_closed",
        "_header_bytes",
        "_header_since",
        "_idle_s",
        "_let_in",
        "_payload",
        "_raw",
        "_stalled_since",
        "_unread",
        "address",
        "body_bytes",
        "quiet_since",
    )

    def __init__(self, accounts: Accounts, server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=_NO_LOG,
            keepalive_timeout=_NEVER_S,  # `look` closes idle connections
            max_line_size=MAX_FIELD_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_HEADERS,
            lingering_time=LINGER_S,
            auto_decompress=False,
        )
        self._all = accounts
        self.address = ""
        """what connections are counted by; empty for proxies in front and unix sockets"""
        self.quiet_since = self._loop.time()
        """when the last request came or was answered"""
        self.body_bytes = 0
        """received of a body that is not complete"""
        self._payload: StreamReader = EMPTY_PAYLOAD  # of the last request
        self._answered = 0
        self._unread = bytearray()
        self._header_bytes = 0
        self._header_since = self._body_since = 0.0
        self._stalled_since: float | None = None
        self._closing_since: float | None = None
        self._half_closed = self._let_in = False

    @property
    def busy(self) -> bool:
        """A request has been received and not been answered."""
        return self._request_count > self._answered

    @property
    def incomplete(self) -> bool:
        """There is no whole request here, so that closing it ends no answer."""
        return not (self.busy and self._payload.is_eof()) and not self._raw.is_closing()

    # ---- what asyncio calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._raw = transport
        self._half = HalfClosed(transport)
        peer = transport.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) else ""
        address = ipaddress.ip_address(host.partition("%")[0]) if host else None
        proxy = address is None or self._all.trusted(address)
        self._idle_s = PROXY_IDLE_S if proxy else self._all.limits.idle_s
        self.address = "" if address is None or proxy else network_of(address)
        if error := self._all.enter(self, self._loop.time()):
            transport.write(raw_answer(error))
            transport.close()
            return
        self._let_in = True
        super().connection_made(transport)
        if host:
            for option, value in OPTIONS:
                transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, value)

    def connection_lost(self, exc: BaseException | None) -> None:
        if not self._let_in:
            return
        self._forget_body()
        self._all.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Not read on while too many requests wait for their answers; what came with the last of them is kept."""
        self._unread += data
        while self._unread and not self._too_far_ahead:
            size = len(self._unread) if not self._payload.is_eof() else _PIECE_BYTES  # of requests few at a time
            piece = bytes(self._unread[:size])
            del self._unread[:size]
            self._parse(piece)
        if self._too_far_ahead:
            self._raw.pause_reading()

    @property
    def _too_far_ahead(self) -> bool:
        return self._request_count - self._answered > MAX_AHEAD

    def _go_on(self) -> None:
        """A request was answered: read on where that was put off."""
        self.data_received(b"")
        if not self._too_far_ahead and not self._raw.is_closing():
            self._raw.resume_reading()

    def _parse(self, data: bytes) -> None:
        before = self._request_count
        body = not self._payload.is_eof()
        super().data_received(data)
        now = self._loop.time()
        if self._request_count != before:
            self._on_request(len(data), now)
        elif body:
            self._on_body(len(data))
        elif data:
            self._on_header(len(data), now)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's contract; aiohttp's own never keeps it open
        """The client sends nothing any more. It may still read: True keeps the connection until it has its answer."""
        if not (self.busy and self._payload.is_eof() and self._payload.exception() is None):
            return False
        self._half_closed = True
        self._half.probe(self._loop.time())
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled_since = self._loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled_since = None

    # ---- what aiohttp calls ----------------------------------------------------------------------------------------

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Every answer passes here; aiohttp's own errors, raised outside of all middlewares, get OpenAI's shape."""
        if isinstance(resp, web.HTTPException):
            error = of_aiohttp(resp)
            self._all.refusals.refused(error, endpoint="malformed", address=self.address)
            resp = respond(error, close=True)
        if self._payload.exception() is not None:
            self._lingering_time = 0.0  # nothing is to come of this body
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1
            if self._request_count - self._answered == MAX_AHEAD:
                self._loop.call_soon(self._go_on)
            self._half.begun = None
            if (broken := self._payload.exception()) is not None:
                drop_frames(broken)
            self.quiet_since = self._loop.time()
            if self._half_closed and not self.busy:
                self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer bytes that are no HTTP request, or a fault outside of all middlewares. Raises ConnectionError in
        mid-answer."""
        if request.writer.output_size > 0 or isinstance(exc, ConnectionError):
            raise ConnectionError("no client reads an answer, or one has begun")
        if not isinstance(exc, HttpProcessingError):
            self.log_exception("a fault of the gateway", exc_info=exc)
        error = malformed(exc)
        self._all.refusals.refused(error, endpoint="malformed", address=self.address)
        return respond(error, close=True)

    def begin(self, response: web.StreamResponse) -> None:
        """An answer is about to be written."""
        self._half.begun = response
        last = self._answered + 1 >= self._all.limits.requests_per_connection
        if last or (self._half_closed and not self._messages):
            response.force_close()
            response.headers["Connection"] = "close"

    # ---- what Connections calls ------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """End this connection when its client is overdue."""
        if self._raw.is_closing():
            self._finish_closing(now)
        elif self._stalled_since is not None and now - self._stalled_since > self._all.limits.write_s:
            self.end("slow_reader")
        elif not self._payload.is_eof():
            self._look_at_body(now)
        elif self._half_closed:
            self._half.look(now)
        elif not self.busy:
            self._look_at_header(now)

    def refuse_body(self, reason: str, error: ApiError) -> None:
        """The request whose body is coming is answered with an error; a second time the connection ends."""
        self._forget_body()
        if self._payload.exception() is None and self.busy:
            self._all.metrics.connection_ended(reason)
            self._payload.set_exception(error)
        else:
            self.end(reason)

    def evict(self) -> None:
        """Make room for another connection."""
        (self.end if self.busy else self.close_idle)("evicted")

    def close_idle(self, reason: str) -> None:
        """Close while nothing is being answered."""
        self._all.metrics.connection_ended(reason)
        self.force_close()

    def end(self, reason: str, error: ApiError | None = None) -> None:
        """Close, with an answer where none is being written; what is open for this client is cancelled."""
        if error is None:
            self._all.metrics.connection_ended(reason)
            self._raw.abort()
        else:
            self._raw.write(raw_answer(error))
            self._all.refusals.refused(error, endpoint="connection", address=self.address)
            self.close_idle(reason)

    # ---- what the client sent --------------------------------------------------------------------------------------

    def _on_request(self, size: int, now: float) -> None:
        self._forget_body()
        message, self._payload = self._messages[-1]
        self._half.interim = getattr(message, "version", None) == HttpVersion11  # HTTP/1.0 knows no interim answers
        self._header_bytes = 0
        self._body_since = self.quiet_since = now
        self._on_body(size)  # what came with the header; the header itself is little beside it

    def _on_body(self, size: int) -> None:
        if self._payload.is_eof():
            self._forget_body()
        elif size and self._payload.exception() is None:  # of a refused body nothing is kept
            self.body_bytes += size
            self._all.hold(size)

    def _on_header(self, size: int, now: float) -> None:
        if not self._header_bytes:
            self._header_since = now
        self._header_bytes += size
        most = self._all.limits.header_bytes
        if self._header_bytes > most:
            self.end(*(("ahead",) if self.busy else ("header_size", header_too_large(most))))

    def _forget_body(self) -> None:
        if self.body_bytes:
            self._all.hold(-self.body_bytes)
            self.body_bytes = 0

    # ---- what is overdue -------------------------------------------------------------------------------------------

    def _look_at_body(self, now: float) -> None:
        limits = self._all.limits
        if not self._raw.is_reading():  # it is this side that does not take more
            self._body_since = now
        elif now - self._body_since > limits.body_s + self.body_bytes / limits.body_bytes_per_s:
            self.refuse_body("body_time", too_slow("body"))

    def _look_at_header(self, now: float) -> None:
        if self._header_bytes and not self._raw.is_reading():
            self._header_since = now
        elif self._header_bytes:
            if now - self._header_since > self._all.limits.header_s:
                self.end("header_time", too_slow("header"))
        elif now - self.quiet_since > self._idle_s:
            self.close_idle("idle")

    def _finish_closing(self, now: float) -> None:
        if self._closing_since is None:
            self._closing_since = now
        elif now - self._closing_since > self._all.limits.write_s:
            self._raw.abort()
