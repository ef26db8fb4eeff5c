"""How an answer is written: whole, or as server-sent events while it is generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from aiohttp import web

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.render import Renderer
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.http.intake import Holding
from aegaeon_gateway.http.silence import COMMENT, Silence

Complete = Callable[[Usage], Awaitable[None]]
"""awaited when an answer is complete, before its client knows"""
_DELTAS_IN_TURN = 16
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # proxies that know it do not collect the stream
}


async def whole(answer: Answer, renderer: Renderer, holding: Holding, complete: Complete) -> web.Response:
    """Collect everything, answer once. Raises the answer's ApiError, UnavailableError when it is too much to hold."""
    prompt = holding.size
    while not answer.done:
        await answer.wait()
        async for delta in _in_turns(answer.drain()):
            holding.hold(prompt + renderer.keep(delta))
        if answer.error is not None:
            raise answer.error
    await complete(answer.usage)
    pieces = []
    for piece in renderer.pieces(answer.usage):
        pieces.append(piece)
        await asyncio.sleep(0)  # between two choices streams go on
    return web.Response(body=b"".join(pieces), content_type="application/json")


async def stream(
    http: web.Request,
    answer: Answer,
    renderer: Renderer,
    silence: Silence,
    starting: Callable[[], bool],
    complete: Complete,
) -> tuple[web.StreamResponse, str]:
    """Write events as tokens come, and say how it ended; what came together is one write.

    The status line is sent with the first token, so that a refusal before it has its own status; where an engine is
    being started, with the first comment, since that takes longer than proxies wait. A later error is an event.
    """
    response, opened, outcome = web.StreamResponse(headers=_STREAM_HEADERS), False, ""
    while not outcome:
        await answer.wait()
        events = []
        async for delta in _in_turns(answer.drain()):
            if not opened:
                events.append(renderer.opening())
                opened = True
            events.append(renderer.chunk(delta))
        last, outcome = _end(answer, renderer)
        if outcome == "ok":
            await complete(answer.usage)
        if answer.error is not None and outcome != "ok" and not response.prepared:
            raise answer.error
        if not events and not last and silence.due and (response.prepared or starting()):
            last = COMMENT
        if data := b"".join((*events, last)):
            await _write(http, response, data)
            silence.wrote()
    await response.write_eof()
    return response, outcome


def _end(answer: Answer, renderer: Renderer) -> tuple[bytes, str]:
    """The last events of a stream and how it ended; both empty while it goes on."""
    if answer.done:
        return renderer.ending(answer.usage), "ok"
    if answer.error is not None:
        return renderer.failure(answer.error), answer.error.outcome
    return b"", ""


async def _write(http: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """The status line goes out with the first bytes."""
    if not response.prepared:
        await response.prepare(http)
    await response.write(data)


async def _in_turns(deltas: Iterator[Delta]) -> AsyncIterator[Delta]:
    """The same; other streams go on after every few, as one with 20 likeliest tokens takes 50 us to render."""
    for number, delta in enumerate(deltas, 1):
        yield delta
        if not number % _DELTAS_IN_TURN:
            await asyncio.sleep(0)
