"""Progress and rate of a transfer, as shown in ModelState, `aegaeon top` and the log."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

_WINDOW_S = 5.0


@dataclass(slots=True)
class Pace:
    """Bytes done of `total`, and the rate over the last seconds. Times are of the monotonic clock, in seconds."""

    done: int = 0
    total: int = 0
    began_s: float = 0.0
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, done: int, total: int, now_s: float | None = None) -> None:
        """Record the bytes done so far. A smaller number than before restarts the measurement."""
        now_s = time.monotonic() if now_s is None else now_s
        if done < self.done or total != self.total:
            self._seen.clear()
        self.done, self.total = done, total
        self.began_s = self.began_s or now_s
        self._seen.append((now_s, done))
        while now_s - self._seen[0][0] > _WINDOW_S and len(self._seen) > 2:
            self._seen.popleft()

    def __str__(self) -> str:
        return (
            f"{self.done / 1e9:.2f} of {self.total / 1e9:.2f} GB, {self.bytes_per_s / 1e6:.0f} MB/s, "
            f"{self.remaining_s:.0f} s to go"
        )

    @property
    def bytes_per_s(self) -> float:
        """0 until two moments are known."""
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return 0.0
        return (self._seen[-1][1] - self._seen[0][1]) / (self._seen[-1][0] - self._seen[0][0])

    @property
    def remaining_s(self) -> float:
        """Seconds to go at this rate; 0 when it is done or nothing is known."""
        rate = self.bytes_per_s
        return (self.total - self.done) / rate if rate > 0 else 0.0
