"""The two directions of one stream: messages in go to a plain function, messages out come from an outbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Any, TypeVar

import grpc

from aegaeon_proto.codec.errors import ProtocolError
from aegaeon_scheduler.service.outbox import Outbox

In = TypeVar("In")
Out = TypeVar("Out")


async def converse(
    incoming: AsyncIterator[In],
    receive: Callable[[In], None],
    outbox: Outbox[Any],
    outgoing: AsyncIterable[Out],
    context: grpc.aio.ServicerContext[Any, Any],
) -> None:
    """Serve until the peer ends the stream or the outbox closes; `outgoing` yields the outbox's content as messages.

    The peer gets the reason: INVALID_ARGUMENT when it broke the contract, RESOURCE_EXHAUSTED when it did not read,
    UNAVAILABLE when this side wants it to connect anew.
    """
    reader = asyncio.create_task(_read(incoming, receive))
    writer = asyncio.create_task(_write(outgoing, context))
    try:
        await asyncio.wait({reader, writer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (reader, writer):
            task.cancel()
        ended = await asyncio.gather(reader, writer, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, ProtocolError):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(outcome))
        if isinstance(outcome, Exception) and not isinstance(outcome, grpc.RpcError | grpc.aio.UsageError):
            raise outcome
    if outbox.overflowed:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "messages were not read; connect anew")
    if outbox.closed:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "connect anew")


async def _read(incoming: AsyncIterator[In], receive: Callable[[In], None]) -> None:
    async for message in incoming:
        receive(message)


async def _write(outgoing: AsyncIterable[Out], context: grpc.aio.ServicerContext[Any, Any]) -> None:
    async for message in outgoing:
        await context.write(message)
