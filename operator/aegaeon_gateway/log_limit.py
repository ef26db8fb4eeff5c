"""Rate limit for log lines that clients can cause, so that no client can fill a disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

LINES_PER_S = 10.0
BURST_LINES = 200.0


@dataclass(slots=True)
class _Bucket:
    lines: float
    at: float
    left_out: int = 0


class LineLimit(logging.Filter):
    """A token bucket for each level of each logger, so that access lines leave room for faults.

    Lines above the rate are left out; the next line of that level says how many.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._buckets: dict[tuple[str, int], _Bucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        bucket = self._buckets.setdefault((record.name, record.levelno), _Bucket(BURST_LINES, now))
        bucket.lines = min(BURST_LINES, bucket.lines + (now - bucket.at) * LINES_PER_S)
        bucket.at = now
        if bucket.lines < 1:
            bucket.left_out += 1
            return False
        bucket.lines -= 1
        if bucket.left_out:
            record.msg, record.args = f"{record.getMessage()} ({bucket.left_out} lines before it left out)", ()
            bucket.left_out = 0
        return True
