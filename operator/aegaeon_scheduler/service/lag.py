"""The lag of the event loop: how long a report that arrives now waits until it is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from aegaeon_scheduler.service.throttle import Throttle

LIMIT_S = 0.05
"""with more, decisions come late, and new requests would make them later"""
_EVERY_S = 0.02
_LONGEST_RETRY_S = 60.0


class SchedulerLoad(NamedTuple):
    """Seconds that the loop is late, new requests that wait for it, and those that were refused since the start;
    `turn_factor`: how many times as many steps as usual decode turns may have."""

    lag_s: float = 0.0
    waiting: int = 0
    refused: int = 0
    turn_factor: int = 1


class Lag:
    """Measured fifty times a second, by what waits as a report does. `clock`: monotonic seconds; `measured` is called
    with each measurement."""

    def __init__(
        self, clock: Callable[[], float], throttle: Throttle, measured: Callable[[float], None] = lambda lag_s: None
    ) -> None:
        self._clock = clock
        self._throttle = throttle
        self._measured = measured
        self._last_s = 0.0
        self._due = clock()
        self._measuring: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """The last measurement, or the current one if that is longer already."""
        return max(self._last_s, self._clock() - self._due) if self._measuring is not None else 0.0

    @property
    def exceeded(self) -> bool:
        """True when the loop is later than the limit."""
        return self.seconds > LIMIT_S

    @property
    def retry_after_s(self) -> float:
        """Seconds after which a request that is refused for lag may come back."""
        return min(max(1.0, self.seconds / LIMIT_S), _LONGEST_RETRY_S)

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
            await self._throttle.enter()
            now = self._clock()
            self._last_s, self._due = now - self._due, now + _EVERY_S
            self._measured(self._last_s)
