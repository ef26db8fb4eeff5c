"""Messages that wait on one stream to the scheduler, and generations whose choices are submitted.

A submission is made into a message when it is sent, not when it waits, and holds no prompt of its own before. The
choices of a generation that wait at the same time, say after the loss of their engine, share one message. A scheduler
that batches receives all that waits as one message, and the next one when it has handled that: what it has no time for
waits here, where a client that leaves ends it and what waits too long is refused, and not in the buffers of the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from itertools import islice

from aegaeon_gateway.generation.choice import Choice
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_proto.v1 import gateway_pb2 as pb

LONGEST_S = 0.5
"""a new request waits here while the scheduler handles others; then a later moment serves it better"""
# Of one message.
_BATCH = 64
_BATCH_TOKENS = 1 << 18


@dataclass
class _Queued:
    """The choices of a generation to be submitted, each with the epoch that begins, and since when."""

    since: float
    epochs: dict[Choice, int] = field(default_factory=dict)


class Outbox:
    """The messages of one stream. `open_`: what is not open any more is not submitted."""

    def __init__(self, open_: OpenRequests) -> None:
        self._open = open_
        self._queue: deque[pb.GatewayMessage | Generation] = deque()
        self._submits: dict[Generation, _Queued] = {}  # of what is in the queue
        self._changed = asyncio.Event()
        self._batches = self._in_flight = self._closed = False

    def put(self, message: pb.GatewayMessage) -> None:
        self._append(message)

    def submit(self, generation: Generation, choices: Iterable[Choice]) -> None:
        """Each with the epoch that it begins here."""
        if generation not in self._submits:
            self._submits[generation] = _Queued(time.monotonic())
            self._append(generation)
        for choice in choices:
            choice.submit()
            self._submits[generation].epochs[choice] = choice.epoch

    def taken(self) -> None:
        """The scheduler batches, and has handled all that it was sent."""
        self._batches, self._in_flight = True, False
        self._changed.set()

    def overdue(self) -> list[Generation]:
        """New requests that have waited here for too long and are not among the next ones. What was with an engine
        before waits on."""
        since = time.monotonic() - LONGEST_S
        behind = islice(self._submits.items(), _BATCH, None)
        return [generation for generation, queued in behind if queued.since < since and not generation.moved]

    def close(self) -> None:
        """The stream is over."""
        self._closed = True
        self._changed.set()

    async def drain(self) -> AsyncIterator[pb.GatewayMessage]:
        """One message at a time, as fast as the scheduler reads; what is not waited for any more is not sent."""
        while True:
            batch = pb.GatewayMessage() if self._in_flight else self._batch(_BATCH if self._batches else 1)
            if batch.more:
                self._in_flight = self._batches
                yield batch if self._batches else batch.more[0]
            elif self._closed:
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    def _append(self, item: pb.GatewayMessage | Generation) -> None:
        self._queue.append(item)
        self._changed.set()

    def _batch(self, limit: int) -> pb.GatewayMessage:
        """Up to so many messages, in their order."""
        batch, tokens = pb.GatewayMessage(), 0
        while self._queue and len(batch.more) < limit and tokens < _BATCH_TOKENS:
            item = self._queue.popleft()
            if isinstance(item, pb.GatewayMessage):
                batch.more.append(item)
            elif choices := self._current(item):
                item.submit(choices, time.monotonic(), batch.more.add())
                tokens += item.prompt.tokens + sum(len(choice.tokens) for choice in choices)
        return batch

    def _current(self, generation: Generation) -> list[Choice]:
        """Empty when the client has left or was refused, or every choice was submitted on another stream since."""
        epochs = self._submits.pop(generation).epochs
        if generation.error is not None or generation not in self._open:
            return []
        return [choice for choice, epoch in epochs.items() if choice.epoch == epoch]
