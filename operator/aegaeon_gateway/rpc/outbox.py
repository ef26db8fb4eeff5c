"""What waits to be sent on one stream to the scheduler: its messages, and generations whose choices are submitted.

A submission is made into a message when it is sent, not when it waits, and holds no prompt of its own before. The
choices of a generation that wait at the same time, say after the loss of their engine, share one message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable

from aegaeon_gateway.generation.choice import Choice
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_proto.v1 import gateway_pb2 as pb


class Outbox:
    """Of one stream. `open_`: what is not open any more is not submitted."""

    def __init__(self, open_: OpenRequests) -> None:
        self._open = open_
        self._queue: asyncio.Queue[pb.GatewayMessage | Generation | None] = asyncio.Queue()
        self._epochs: dict[Generation, dict[Choice, int]] = {}  # of what is in the queue

    def put(self, message: pb.GatewayMessage) -> None:
        self._queue.put_nowait(message)

    def submit(self, generation: Generation, choices: Iterable[Choice]) -> None:
        """Each with the epoch that it begins here."""
        if generation not in self._epochs:
            self._epochs[generation] = {}
            self._queue.put_nowait(generation)
        for choice in choices:
            choice.submit()
            self._epochs[generation][choice] = choice.epoch

    def close(self) -> None:
        """The stream is over."""
        self._queue.put_nowait(None)

    async def drain(self) -> AsyncIterator[pb.GatewayMessage]:
        """One message at a time, as fast as the scheduler reads; what is not waited for any more is not sent."""
        while (item := await self._queue.get()) is not None:
            message = self._submission(item) if isinstance(item, Generation) else item
            if message is not None:
                yield message

    def _submission(self, generation: Generation) -> pb.GatewayMessage | None:
        """None when the client has left, or every choice was submitted on another stream since."""
        epochs = self._epochs.pop(generation)
        current = [choice for choice, epoch in epochs.items() if choice.epoch == epoch]
        return generation.submit(current, time.monotonic()) if current and generation in self._open else None
