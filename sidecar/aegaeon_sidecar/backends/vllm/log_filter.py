"""vLLM's log beside ours: what it says of each model again is said once in a while."""

from __future__ import annotations

import logging
from collections.abc import Callable

EVERY_S = 600.0


class RepeatFilter(logging.Filter):
    """Passes one in EVERY_S of the messages of `logger`, and those below it, that differ only in their arguments."""

    def __init__(self, logger: str, clock: Callable[[], float]) -> None:
        super().__init__(logger)
        self._clock = clock
        self._said_s: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass errors always, and messages of other loggers."""
        if record.levelno >= logging.ERROR or not super().filter(record):
            return True
        place, now = (record.pathname, record.lineno), self._clock()
        passes = now - self._said_s.get(place, -EVERY_S) >= EVERY_S
        if passes:
            self._said_s[place] = now
        return passes
