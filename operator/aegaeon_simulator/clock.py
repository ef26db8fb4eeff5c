"""Virtual time: a heap of callbacks; callbacks at the same time run in the order in which they were scheduled."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    """Seconds since the start, and actions run. Deterministic: equal times run first come, first served."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Run the action at this time, or now if that has passed."""
        self._count += 1
        heapq.heappush(self._heap, (max(when, self.now), self._count, action))

    def step(self) -> bool:
        """Run the next action; False when there is none."""
        if not self._heap:
            return False
        self.now, _, action = heapq.heappop(self._heap)
        self.steps += 1
        action()
        return True

    def next_at(self) -> float | None:
        """The time of the next action."""
        return self._heap[0][0] if self._heap else None
