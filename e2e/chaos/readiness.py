"""What the GpuPool says of itself, beside what clients see: how long does it say Ready while nothing is answered?"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence

from e2e.chaos.follower import Follower
from e2e.chaos.view import UNREACHABLE, View

_EVERY_S = 0.5

Sample = tuple[float, bool]
"""when (monotonic), and whether it said Ready"""


class Readiness(Follower):
    """In a `with`: reads the condition again and again. While the API server is unavailable nothing is read."""

    def __init__(self, view: View, pool: str) -> None:
        super().__init__("readiness", _EVERY_S)
        self._view, self._pool = view, pool
        self.samples: list[Sample] = []

    def look(self) -> None:
        try:
            ready = self._view.condition("gpupools", self._pool, "Ready").get("status") == "True"
        except UNREACHABLE:
            return
        self.samples.append((time.monotonic(), ready))


def untrue_s(samples: Sequence[Sample], answers: Sequence[float]) -> float:
    """The longest time in which every sample said Ready and no answer came. `answers`: when one did, in order."""
    longest, ready_since = 0.0, float("inf")
    for at, ready in samples:
        ready_since = min(ready_since, at) if ready else float("inf")
        answered = bisect_right(answers, at)
        since = max(ready_since, answers[answered - 1] if answered else ready_since)
        longest = max(longest, at - since)
    return longest
