"""Token quotas as sliding windows: what was served in the last minute, and what is reserved, is at most the quota.

A token bucket of a minute's size would let twice the quota through within a minute. Here a token counts for a minute
from when it is served, rounded up to slices of a second, so the bound holds in any minute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

SPAN_S = 60.0
SLICE_S = 1.0
_UNKNOWN_S = 5.0  # until the reservation of another gateway may be given back
_SPARE = 64  # windows beside twice as many as counted something, before those that count nothing are looked for


class Room(NamedTuple):
    """The result of an attempt to reserve. `wait_s`: 0 where it succeeded, else when to try again; `left`: neither used
    nor reserved afterwards; `full_s`: seconds until nothing that was served counts any more."""

    wait_s: float
    left: float
    full_s: float


class Windows(Protocol):
    """Windows by key. What is reserved is spent or given back."""

    async def reserve(self, key: str, size: float, amount: float) -> Room:
        """Reserve all of `amount`, if it fits what `size` leaves."""
        ...

    def spend(self, key: str, amount: float) -> None:
        """So much of what was reserved is served now."""
        ...

    def give_back(self, key: str, amount: float) -> None:
        """So much of what was reserved is not needed."""
        ...

    async def close(self) -> None:
        """Give up connections."""
        ...


class Window:
    """One window. `used`: served in the last minute; `reserved`: to be served."""

    def __init__(self) -> None:
        self.used = 0.0
        self.reserved = 0.0
        self._slices: deque[tuple[float, float]] = deque()  # when each began, and what was served in it

    def expire(self, now: float) -> None:
        """Forget what does not count any more."""
        while self._slices and self._slices[0][0] + SLICE_S + SPAN_S <= now:
            self.used -= self._slices.popleft()[1]
        if not self._slices:
            self.used = 0.0  # not what is left of rounding

    def serve(self, amount: float, now: float) -> None:
        """Count tokens from now on."""
        begun = now - now % SLICE_S
        if self._slices and self._slices[-1][0] == begun:
            amount_before = self._slices.pop()[1]
            self._slices.append((begun, amount_before + amount))
        else:
            self._slices.append((begun, amount))
        self.used += amount

    def room(self, size: float, amount: float, now: float) -> Room:
        """The result that an attempt to reserve would have; it changes nothing."""
        free = size - self.used - self.reserved
        full_s = max(self._slices[-1][0] + SLICE_S + SPAN_S - now, 0.0) if self._slices else 0.0
        if amount <= free:
            return Room(0.0, free - amount, full_s)
        return Room(self._wait_s(amount - free, now), max(free, 0.0), full_s)

    def _wait_s(self, lacking: float, now: float) -> float:
        for begun, amount in self._slices:
            lacking -= amount
            if lacking <= 0:
                return begun + SLICE_S + SPAN_S - now
        return _UNKNOWN_S


class MemoryWindows:
    """Windows in this process. A window that counts nothing is as good as none, and goes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, Window] = {}
        self._most = _SPARE

    async def reserve(self, key: str, size: float, amount: float) -> Room:
        """See Windows."""
        room = self.of(key).room(size, amount, self._clock())
        if not room.wait_s:
            self.of(key).reserved += amount
        return room

    def spend(self, key: str, amount: float) -> None:
        """See Windows."""
        window = self.of(key)
        window.reserved -= amount
        window.serve(amount, self._clock())

    def give_back(self, key: str, amount: float) -> None:
        """See Windows."""
        self.of(key).reserved -= amount

    async def close(self) -> None:
        """See Windows."""

    def of(self, key: str) -> Window:
        """The window of now."""
        now = self._clock()
        if (window := self._windows.get(key)) is None:
            window = self._windows[key] = Window()
            self._drop_empty(now)
            self._windows[key] = window
        window.expire(now)
        return window

    def _drop_empty(self, now: float) -> None:
        if len(self._windows) <= self._most:
            return
        for window in self._windows.values():
            window.expire(now)
        self._windows = {key: window for key, window in self._windows.items() if window.used or window.reserved}
        self._most = 2 * len(self._windows) + _SPARE
