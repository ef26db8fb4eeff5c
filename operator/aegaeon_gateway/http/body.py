"""Answers that are written at once, when all of them is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from aiohttp import web

from aegaeon_gateway.answer.answer import Answer
from aegaeon_gateway.answer.pooled import Pooling
from aegaeon_gateway.generation.output import Delta
from aegaeon_gateway.http.conversation import keep
from aegaeon_gateway.http.exchange import Exchange

DELTAS_IN_TURN = 16
_NUMBER_BYTES = 32  # of a number of a result, and as it is written


class BodyWriter:
    """Implements Writer: one JSON body."""

    async def render(self, exchange: Exchange) -> web.StreamResponse:
        body = await body_of(exchange)
        timed = isinstance(exchange.answer, Answer)
        headers = {"Server-Timing": exchange.answer.timing.header} if timed else None
        return web.Response(body=body, content_type="application/json", headers=headers)


async def body_of(exchange: Exchange) -> bytes:
    """The whole answer. Raises the answer's ApiError, UnavailableError when it is too much to hold."""
    match exchange.answer:
        case Pooling() as pooling:
            return await _vectors(exchange, pooling)
        case Answer() as answer:
            await collect(exchange, answer)
            await keep(exchange)
            return await _joined(exchange.renderer.pieces(answer.usage))


async def collect(exchange: Exchange, answer: Answer) -> None:
    """Receive all of a generated answer, rendered as it comes. Raises as `body_of` does."""
    holding, prompt_bytes = exchange.holding, exchange.holding.size
    while not answer.done:
        await answer.wait()
        async for delta in in_turns(answer.drain()):
            holding.hold(prompt_bytes + exchange.renderer.keep(delta))
        if answer.error is not None:
            raise answer.error


async def in_turns(deltas: Iterator[Delta]) -> AsyncIterator[Delta]:
    """The same; other streams run after every few, as one with 20 likeliest tokens takes 50 us to render."""
    for number, delta in enumerate(deltas, 1):
        yield delta
        if not number % DELTAS_IN_TURN:
            await asyncio.sleep(0)


async def _vectors(exchange: Exchange, pooling: Pooling) -> bytes:
    """Raises as `body_of` does."""
    vectors = await pooling.results()
    exchange.holding.hold(sum(vector.size for vector in vectors) * _NUMBER_BYTES)
    render, pooled = exchange.endpoint.vectors, exchange.request.options.pooled
    assert render is not None, "only endpoints of vectors have a Pooling"
    assert pooled is not None, "the worker sets it for these endpoints"
    return await render(exchange.request, pooled, vectors)


async def _joined(pieces: Iterator[bytes]) -> bytes:
    """Other streams run between two choices."""
    made = []
    for piece in pieces:
        made.append(piece)
        await asyncio.sleep(0)
    return b"".join(made)
