"""What the GpuPool says of itself, beside what clients see: how long does it say Ready while nothing is answered?"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from e2e.chaos.view import UNREACHABLE, View

_EVERY_S = 0.5

Sample = tuple[float, bool]
"""when (monotonic), and whether it said Ready"""


class Readiness:
    """In a `with`: reads the condition again and again. While the API server is unavailable nothing is read."""

    def __init__(self, view: View, pool: str) -> None:
        self._view, self._pool = view, pool
        self.samples: list[Sample] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="readiness", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._end.wait(_EVERY_S):
            try:
                ready = self._view.condition("gpupools", self._pool, "Ready").get("status") == "True"
            except UNREACHABLE:
                continue
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
