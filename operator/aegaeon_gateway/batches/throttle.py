"""How many requests of batches are open at a time: few while online traffic needs the engines, more while it does not.

Additive increase, multiplicative decrease, once a tick: what online requests meet is the measure, as it is of every
queue before the engines, and of no estimate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

TICK_S = 0.5
_MOST_KV = 0.9  # of the pool's memory for sequences; beyond it batches take no more of it


@dataclass(frozen=True, slots=True)
class Pressure:
    """Load of the last tick: online tokens that came late, online requests that wait for more than half of their TTFT,
    requests of batches that were refused, and the share of the memory for sequences that is used."""

    late: int = 0
    waiting: int = 0
    refused: int = 0
    kv_used: float = 0.0


def next_limit(limit: int, most: int, *, full: bool, pressure: Pressure) -> int:
    """For the next tick; `full`: all that the limit allows was open. Under online pressure it goes to 0."""
    if pressure.late or pressure.waiting:
        return limit // 2
    if pressure.refused:
        return max(limit // 2, 1)
    if pressure.kv_used > _MOST_KV:
        return max(limit - 1, 1)
    return min(limit + 1, most) if full or not limit else limit


class Throttle:
    """Owner of the slots of one gateway, of which all its batches take turns."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = 1
        self._open = 0
        self._refused = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Around a request, from when there is room for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._open < self._limit)
            self._open += 1
        try:
            yield
        finally:
            self._open -= 1
            async with self._changed:
                self._changed.notify(1)

    def refused(self) -> None:
        """A request of a batch found no room."""
        self._refused += 1

    async def tick(self, pressure: Pressure) -> None:
        """Once in TICK_S."""
        measured = Pressure(pressure.late, pressure.waiting, self._refused, pressure.kv_used)
        self._refused = 0
        self._limit = next_limit(self._limit, self._most, full=self._open >= self._limit, pressure=measured)
        async with self._changed:
            self._changed.notify(max(self._limit - self._open, 0))

    def check(self) -> None:
        """Raises AssertionError when a slot is taken."""
        assert not self._open, f"{self._open} slots are taken"
