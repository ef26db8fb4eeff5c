"""The one writer of an answer of server-sent events: its status line, comments, events, and its end."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from aegaeon_gateway.answer.render import event
from aegaeon_gateway.errors import ApiError

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies that know it do not collect the stream
}


class EventStream:
    """`opened`: the status line is out; `begun`: an event is, so that the answer cannot be another one any more."""

    def __init__(self, http: web.Request) -> None:
        self._http = http
        self.response = web.StreamResponse(headers=_HEADERS)
        self.begun = False
        self.failure: Callable[[ApiError], bytes] = lambda error: event(error.body())
        """makes the event of an error"""

    @property
    def opened(self) -> bool:
        return self.response.prepared

    async def open(self) -> None:
        """Send status and headers, if they are not out."""
        if not self.opened:
            await self.response.prepare(self._http)

    async def comment(self, text: str) -> None:
        """A line that clients skip and proxies count as traffic."""
        await self.open()
        await self.response.write(b": " + text.encode() + b"\n\n")

    async def write(self, events: bytes) -> None:
        """One or more events."""
        await self.open()
        self.begun = True
        await self.response.write(events)

    @property
    def flows(self) -> bool:
        """An event is out and the client has taken all: the next can be written without waiting."""
        transport = self._http.transport
        return (
            self.begun
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()
        )

    def write_now(self, events: bytes) -> None:
        """The same as `write`, only while it flows: a hop through the event loop costs as much as the event."""
        transport = self._http.transport
        assert transport is not None, "it flows"
        chunked = "Transfer-Encoding" in self.response.headers
        transport.write(b"%x\r\n%b\r\n" % (len(events), events) if chunked else events)

    async def end(self) -> None:
        """Nothing more comes."""
        await self.response.write_eof()

    async def fail(self, error: ApiError) -> web.StreamResponse:
        """End a stream that is opened with an error."""
        await self.write(self.failure(error))
        await self.end()
        return self.response
