"""How late the event loop is: what a report that comes now waits until it is handled, with all that came before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from aegaeon_scheduler.service.turnstile import Turnstile

MOST_S = 0.05
"""with more, decisions come late, and new work would make them later"""
_EVERY_S = 0.02


class SchedulerLoad(NamedTuple):
    """Seconds that the loop is late, new requests that wait for it, and those that were refused since the start."""

    lag_s: float = 0.0
    waiting: int = 0
    refused: int = 0


class Lag:
    """Measured all the time by a report of its own, which says nothing. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float], turnstile: Turnstile) -> None:
        self._clock = clock
        self._turnstile = turnstile
        self._last_s = 0.0
        self._due = clock()
        self._measuring: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """Of the last report, or of the one that still waits, if that is longer."""
        return max(self._last_s, self._clock() - self._due) if self._measuring is not None else 0.0

    @property
    def exceeded(self) -> bool:
        """Whether it is more than the loop may be late."""
        return self.seconds > MOST_S

    def start(self) -> None:
        """Measure from now on."""
        self._due = self._clock() + _EVERY_S
        self._measuring = asyncio.create_task(self._measure())

    async def stop(self) -> None:
        """Measure no more."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.gather(self._measuring, return_exceptions=True)
            self._measuring = None

    async def _measure(self) -> None:
        while True:
            await asyncio.sleep(self._due - self._clock())
            await self._turnstile.enter()
            now = self._clock()
            self._last_s, self._due = now - self._due, now + _EVERY_S
