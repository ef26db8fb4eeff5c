"""The TokenSink service: sidecars push tokens, open generations take them, batches are acknowledged cumulatively."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_proto.servers import add_port, make_server
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.gateway_pb2_grpc import TokenSinkServicer, add_TokenSinkServicer_to_server
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FinishReason

_ACK_EVERY_S = 0.05  # one acknowledgement covers all batches of this time; each costs as much as some tokens
_WOKEN_IN_TURN = 32  # a wake may render and write
_FINISHES = frozenset(FinishReason.values())
_SERVER = (("grpc.max_receive_message_length", 64 << 20),)


class TokenSink(TokenSinkServicer):
    """Hands tokens to the generations that they belong to; tokens of anything else are acknowledged and dropped."""

    def __init__(self, open_: OpenRequests) -> None:
        self._open = open_

    async def Push(  # type: ignore[override]  # the stub is for sync servers as well
        self,
        request_iterator: AsyncIterator[pb.TokenBatch],
        context: grpc.aio.ServicerContext[pb.TokenBatch, pb.TokenAck],
    ) -> None:
        acks = _Acks(context)
        writer = asyncio.create_task(acks.run())
        try:
            async for batch in request_iterator:
                await self.deliver(batch)
                acks.due(batch.number)
        finally:
            writer.cancel()
            await asyncio.wait([writer])
        await acks.write()

    async def deliver(self, batch: pb.TokenBatch) -> None:
        """Take one batch; every generation that got something new is woken once."""
        waiting = self.take(batch)
        try:
            while waiting:
                waiting.pop().wake()
                if not len(waiting) % _WOKEN_IN_TURN:
                    await asyncio.sleep(0)
        finally:  # what is taken is not sent again, also where the stream breaks here
            for generation in waiting:
                generation.wake()

    def take(self, batch: pb.TokenBatch) -> set[Generation]:
        """The generations that got something new."""
        now = time.monotonic()
        woken: set[Generation] = set()
        for token in batch.tokens:
            generation = self._open.get(token.seq.request)
            if token.finish not in _FINISHES:  # of an engine of another version
                token.finish = FINISH_REASON_ERROR
            if generation is not None and generation.receive(token, now):
                woken.add(generation)
        return woken


class _Acks:
    """Writes the newest batch number, once for all batches of some milliseconds."""

    def __init__(self, context: grpc.aio.ServicerContext[pb.TokenBatch, pb.TokenAck]) -> None:
        self._context = context
        self._newest = 0
        self._written = 0
        self._due = asyncio.Event()

    def due(self, number: int) -> None:
        self._newest = max(self._newest, number)
        self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(_ACK_EVERY_S)
            self._due.clear()
            await self.write()

    async def write(self) -> None:
        """Acknowledge what is not acknowledged yet."""
        if self._newest > self._written:
            self._written = self._newest
            await self._context.write(pb.TokenAck(number=self._newest))


async def start_sink(target: str, tls: Path | None, open_: OpenRequests) -> grpc.aio.Server:
    """Serve TokenSink on a gRPC target. Raises RuntimeError when it is taken, TlsError without certificates."""
    server = make_server(_SERVER)
    add_TokenSinkServicer_to_server(TokenSink(open_), server)
    add_port(server, target, tls)
    await server.start()
    return server
