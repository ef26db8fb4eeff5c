"""Queued reports to the scheduler: any thread appends, the event loop sends.

Reports about commands belong to one attachment. Without one they are dropped: the next scheduler does not know their
ids, and Hello gives it the current state.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from aegaeon_proto.engine.reports import Memory, Report


class Outbox:
    """`post` never blocks. One taker at a time, on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reports: deque[Report] = deque()
        self._filled = asyncio.Event()
        self._attachment: int | None = None
        self._newest: tuple[float, Memory] | None = None  # when a report last named what is free; monotonic seconds
        self.closed = False

    def begin(self, attachment: int) -> None:
        """Keep reports of this attachment from now on."""
        self._reports.clear()
        self._attachment, self._newest = attachment, None

    def end(self) -> None:
        """Note that no scheduler is attached."""
        self._attachment = None
        self._reports.clear()

    def post(self, report: Report, attachment: int | None = None) -> None:
        """Queue a report of this attachment; None for a report that is valid for any scheduler."""
        if self._attachment is not None and attachment in (None, self._attachment):
            memory: Memory | None = getattr(report, "memory", None)
            if memory is not None:
                self._newest = time.monotonic(), memory
            self._reports.append(report)
            self._loop.call_soon_threadsafe(self._filled.set)

    def repeats(self, memory: Memory, within_s: float) -> bool:
        """True when a report of this attachment named the same memory so recently. What it has `outside` is for people,
        who read the next report's."""
        if self._newest is None:
            return False
        at, newest = self._newest
        return time.monotonic() - at < within_s and newest == replace(memory, outside=newest.outside)

    def close(self) -> None:
        """Refuse further reports; queued ones are still delivered."""
        self.closed = True
        self._filled.set()

    async def take(self) -> Report:
        """The next report."""
        while not self._reports:
            self._filled.clear()
            await self._filled.wait()
        return self._reports.popleft()

    async def batches(self, limit: int) -> AsyncIterator[list[Report]]:
        """All reports that wait, in order, up to this many at once, until it is closed."""
        while True:
            while self._reports:
                yield [self._reports.popleft() for _ in range(min(limit, len(self._reports)))]
            if self.closed:
                return
            self._filled.clear()
            await self._filled.wait()
