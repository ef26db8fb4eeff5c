"""The core has no timers: it asks for a Tick at a time, and this keeps that promise on the running loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from heapq import heappop, heappush

# Times are rounded up to this grid: a core that sets a timer with every event wakes at most a thousand times a second.
_GRID_S = 0.001


class Alarm:
    """Calls `ring` once at, never before, each time that was set."""

    def __init__(self, clock: Callable[[], float], ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._times: list[float] = []
        self._known: set[float] = set()
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at: float) -> None:
        """Ring at `at`, seconds on the clock; a time in the past means as soon as the loop is free."""
        at = math.ceil(at / _GRID_S) * _GRID_S
        if at in self._known:
            return
        self._known.add(at)
        heappush(self._times, at)
        if self._times[0] == at:
            self._arm()

    def stop(self) -> None:
        """Ring no more."""
        self._times.clear()
        self._known.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._times:
            delay = max(0.0, self._times[0] - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        due = False
        while self._times and self._times[0] <= now:
            self._known.discard(heappop(self._times))
            due = True
        if due:
            self._ring()
        if self._timer is None:
            self._arm()
