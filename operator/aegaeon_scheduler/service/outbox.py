"""Messages that wait to be written to one peer: bounded, so that a peer that stopped reading cannot fill our memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

M = TypeVar("M")


class Outbox(Generic[M]):
    """One writer's queue of messages. `put` never waits; a full box closes itself and says so."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._messages: deque[tuple[M, Callable[[M], None] | None, bool]] = deque()
        self._changed = asyncio.Event()
        self.closed = False
        self.overflowed = False

    def put(self, message: M, complete: Callable[[M], None] | None = None, large: bool = False) -> None:
        """Queue a message. Past the limit the box closes and forgets what it held: its peer has to connect anew.

        `complete` adds to the message, as it is handed out, what is too large to be copied while it waits. Such a
        message, or one that is `large` by itself, is the last of its batch.
        """
        if self.closed:
            return
        if len(self._messages) >= self._limit:
            self.overflowed = True
            self._messages.clear()
            self.close()
            return
        self._messages.append((message, complete, large or complete is not None))
        self._changed.set()

    def close(self) -> None:
        """Take nothing more; what is queued is still handed out, then the iteration ends."""
        self.closed = True
        self._changed.set()

    def __len__(self) -> int:
        return len(self._messages)

    async def __aiter__(self) -> AsyncIterator[M]:
        async for (message,) in self.batches(1):
            yield message

    async def batches(self, limit: int) -> AsyncIterator[list[M]]:
        """All that waits, in order, up to this many at once, of which one is large at most."""
        while True:
            while self._messages:
                yield self._batch(limit)
            if self.closed:
                return
            self._changed.clear()
            await self._changed.wait()

    def _batch(self, limit: int) -> list[M]:
        batch: list[M] = []
        while self._messages and len(batch) < limit:
            message, complete, large = self._messages.popleft()
            batch.append(message)
            if complete is not None:
                complete(message)
            if large:
                break
        return batch
