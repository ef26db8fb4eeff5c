"""Sidecars push tokens, open generations take them, batches are acknowledged cumulatively."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_proto.frame_server import Connection, FrameServer
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_ERROR, FinishReason

_ACK_EVERY_S = 0.05  # one acknowledgement covers all batches of this time; each costs as much as some tokens
_WOKEN_IN_TURN = 32  # a wake may render and write
_FINISHES = frozenset(FinishReason.values())
_MOST_BYTES = 64 << 20


class TokenSink:
    """One sidecar's tokens, handed to the generations that they belong to; those of anything else are acknowledged and
    dropped. Rendered and written where they arrive: a hop through the event loop costs as much as a token."""

    def __init__(self, open_: OpenRequests, connection: Connection) -> None:
        self._open = open_
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._newest = self._acknowledged = 0
        self._due: asyncio.TimerHandle | None = None

    def received(self, data: bytes) -> None:
        """Take one batch; every generation that got something new is woken once."""
        batch = pb.TokenBatch.FromString(data)
        waiting = take(self._open, batch)
        self._newest = max(self._newest, batch.number)
        if self._due is None:
            self._due = self._loop.call_later(_ACK_EVERY_S, self._acknowledge)
        self._wake(waiting)

    def ended(self) -> None:
        """Acknowledge batches that were taken, so that they are not sent again."""
        if self._due is not None:
            self._due.cancel()
            self._acknowledge()

    def _wake(self, waiting: set[Generation]) -> None:
        """Some of them now and the others after what else waits in the event loop; the sidecar waits for all."""
        try:
            for _ in range(min(len(waiting), _WOKEN_IN_TURN)):
                waiting.pop().wake()
        finally:
            if waiting:
                self._connection.pause()
                self._loop.call_soon(self._wake, waiting)
            else:
                self._connection.resume()

    def _acknowledge(self) -> None:
        self._due = None
        if self._newest > self._acknowledged:
            self._acknowledged = self._newest
            self._connection.send(pb.TokenAck(number=self._newest))


def take(open_: OpenRequests, batch: pb.TokenBatch) -> set[Generation]:
    """The generations that got something new."""
    now = time.monotonic()
    woken: set[Generation] = set()
    for token in batch.tokens:
        generation = open_.get(token.seq.request)
        if token.finish not in _FINISHES:  # of an engine of another version
            token.finish = FINISH_REASON_ERROR
        if generation is not None and generation.receive(token, now):
            woken.add(generation)
    return woken


async def start_sink(target: str, tls: Path | None, open_: OpenRequests) -> FrameServer:
    """Serve tokens' frames on `unix:PATH` or `HOST:PORT`. Raises OSError when it is taken, TlsError without
    certificates."""
    server = FrameServer("TokenSink", Role.ENGINE, lambda connection: TokenSink(open_, connection), _MOST_BYTES)
    await server.start(target, tls)
    return server
