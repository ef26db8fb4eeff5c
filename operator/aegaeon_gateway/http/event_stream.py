"""An answer of server-sent events, written while it is generated: status line, comments, events, and the end."""

from __future__ import annotations

import asyncio

from aiohttp import web

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.render import Renderer
from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.http.body import DELTAS_IN_TURN, in_turns
from aegaeon_gateway.http.conversation import keep
from aegaeon_gateway.http.exchange import Exchange
from aegaeon_gateway.http.silence import HELD, Silence, waiting

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies that know it do not collect the stream
}


class StreamWriter:
    """Implements Writer. The status line may be out, and comments, before the exchange is submitted a second time."""

    _answer: Answer
    _renderer: Renderer
    _silence: Silence

    def __init__(self, http: web.Request) -> None:
        self._http = http
        self._response = web.StreamResponse(headers=_HEADERS)
        self._begun = False  # an event is out: the answer cannot be another one any more

    @property
    def opened(self) -> bool:
        """The status line is out."""
        return self._response.prepared

    def bind(self, renderer: Renderer) -> None:
        """Take the shapes of the next answer."""
        self._renderer = renderer
        self._rendered = False

    async def render(self, exchange: Exchange) -> web.StreamResponse:
        """Write events as tokens come; what came together is one write.

        The status line is sent as soon as the scheduler has taken the request, so that no proxy gives it up; earlier
        where that takes long. A refusal before it has its own status and is raised, as is one before the first event:
        the caller may try again. A later error is an event.
        """
        answer, ended = exchange.answer, False
        assert isinstance(answer, Answer), "vectors are not streamed"
        with Silence(exchange.gateway.config.keepalive_s, answer.wake) as silence:
            self._answer, self._silence = answer, silence
            while not ended:
                await answer.wait(self._write_arrived)
                events = await self._arrived(answer)
                if answer.done:
                    await keep(exchange)
                elif answer.error is not None and not self._begun:
                    raise answer.error
                if ended := answer.done or answer.error is not None:
                    events += self._ending(answer)
                if answer.accepted:
                    await self._open()
                if events:
                    await self._write(events)
                elif silence.due:
                    await self._comment(_reason(exchange, answer))
            await self._response.write_eof()
        if not answer.done and answer.error is not None:
            exchange.outcome = answer.error.outcome
        return self._response

    async def fail(self, error: ApiError) -> web.StreamResponse:
        """End a stream that is opened with an error."""
        await self._write(self._renderer.failure(error))
        await self._response.write_eof()
        return self._response

    # ---- events ----------------------------------------------------------------------------------------------------

    async def _arrived(self, answer: Answer) -> bytes:
        """The events of what is new; other streams run meanwhile."""
        events = []
        async for delta in in_turns(answer.drain()):
            if not self._rendered:
                events.append(self._renderer.opening())
                self._rendered = True
            events.append(self._renderer.chunk(delta))
        return b"".join(events)

    def _ending(self, answer: Answer) -> bytes:
        """The last events; the timing, which is known after the headers are sent, comes as a comment."""
        if answer.done:
            return f": Server-Timing: {answer.timing.header}\n\n".encode() + self._renderer.ending(answer.usage)
        assert answer.error is not None, "a stream ends when it is complete or has failed"
        return self._renderer.failure(answer.error)

    # ---- writes ----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Send status and headers, if they are not out."""
        if not self.opened:
            await self._response.prepare(self._http)

    async def _write(self, events: bytes) -> None:
        await self._open()
        self._begun = True
        await self._response.write(events)
        self._silence.wrote()

    async def _comment(self, text: str) -> None:
        """A line that clients skip and proxies count as traffic."""
        await self._open()
        await self._response.write(b": " + text.encode() + b"\n\n")
        self._silence.wrote()

    def _write_arrived(self) -> bool:
        """Write what has just arrived; False when there is more to do than that, or it must wait."""
        answer, transport = self._answer, self._http.transport
        if transport is None or not self._flows(transport) or answer.choices > DELTAS_IN_TURN:
            return False
        ended, events = False, []
        for delta in answer.drain():
            events.append(self._renderer.chunk(delta))
            ended = ended or delta.finish is not None
        if data := b"".join(events):
            self.write_now(transport, data)
        return not ended and answer.error is None

    def _flows(self, transport: asyncio.Transport) -> bool:
        """An event is out and the client has taken all: the next can be written without waiting."""
        return self._begun and not transport.is_closing() and not transport.get_write_buffer_size()

    def write_now(self, transport: asyncio.Transport, events: bytes) -> None:
        """The same as `_write`, only while it flows: a hop through the event loop costs as much as the event."""
        chunked = "Transfer-Encoding" in self._response.headers
        transport.write(b"%x\r\n%b\r\n" % (len(events), events) if chunked else events)
        self._silence.wrote()


def _reason(exchange: Exchange, answer: Answer) -> str:
    """Why nothing else is written at present."""
    return HELD if answer.held else waiting(answer.place, exchange.gateway.catalog.find(answer.model))
