"""How an answer is written: whole, or as server-sent events while it is generated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

from aiohttp import web

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.render import Renderer
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.http.event_stream import EventStream
from aegaeon_gateway.http.intake import Holding
from aegaeon_gateway.http.silence import HELD, Silence

Complete = Callable[[Usage], Awaitable[None]]
"""awaited when an answer is complete, before its client knows"""
_DELTAS_IN_TURN = 16


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
    headers = {"Server-Timing": answer.timing.header}
    return web.Response(body=b"".join(pieces), content_type="application/json", headers=headers)


async def stream(
    events: EventStream,
    answer: Answer,
    renderer: Renderer,
    silence: Silence,
    complete: Complete,
    waits_for: Callable[[], str],
) -> str:
    """Write events as tokens come, and say how it ended; what came together is one write.

    The status line is sent as soon as the scheduler has taken the request, so that no proxy gives it up; earlier where
    that takes long. A refusal before it has its own status and is raised, as is one before the first event: the caller
    may try again. A later error is an event. `fetch`: see silence.waiting.
    """
    outcome, opened = "", False
    direct = partial(_write_arrived, events, answer, renderer, silence)
    while not outcome:
        await answer.wait(direct)
        made = []
        async for delta in _in_turns(answer.drain()):
            if not opened:
                made.append(renderer.opening())
                opened = True
            made.append(renderer.chunk(delta))
        if answer.done:
            await complete(answer.usage)
        last, outcome = _end(answer, renderer)
        if answer.error is not None and outcome != "ok" and not events.begun:
            raise answer.error
        if answer.accepted:
            await events.open()
        if data := b"".join((*made, last)):
            await events.write(data)
            silence.wrote()
        elif silence.due:
            await events.comment(HELD if answer.held else waits_for())
            silence.wrote()
    await events.end()
    return outcome


def _write_arrived(events: EventStream, answer: Answer, renderer: Renderer, silence: Silence) -> bool:
    """Write what has just arrived; False when there is more to do than that, or it must wait."""
    if not events.flows or answer.choices > _DELTAS_IN_TURN:
        return False
    ended, made = False, []
    for delta in answer.drain():
        made.append(renderer.chunk(delta))
        ended = ended or delta.finish is not None
    if data := b"".join(made):
        events.write_now(data)
        silence.wrote()
    return not ended and answer.error is None


def _end(answer: Answer, renderer: Renderer) -> tuple[bytes, str]:
    """The last events of a stream and how it ended; both empty while it goes on.

    Headers were sent before it was known where the time would go, so that comes as a comment.
    """
    if answer.done:
        return f": Server-Timing: {answer.timing.header}\n\n".encode() + renderer.ending(answer.usage), "ok"
    if answer.error is not None:
        return renderer.failure(answer.error), answer.error.outcome
    return b"", ""


async def _in_turns(deltas: Iterator[Delta]) -> AsyncIterator[Delta]:
    """The same; other streams go on after every few, as one with 20 likeliest tokens takes 50 us to render."""
    for number, delta in enumerate(deltas, 1):
        yield delta
        if not number % _DELTAS_IN_TURN:
            await asyncio.sleep(0)
