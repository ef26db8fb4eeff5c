"""Count refused and ended calls, and log the counts at a limited rate."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Literal

from aegaeon_picker.transport.limits import Clock, Reason

log = logging.getLogger(__name__)

Scope = Literal["connection", "stream"]
Count = Callable[[Scope, Reason], None]
_EVERY_S = 10.0  # a line for each scope and reason


class Rejections:
    """The rejections of a port."""

    def __init__(self, count: Count, clock: Clock) -> None:
        self._count, self._clock = count, clock
        self._next: dict[tuple[Scope, Reason], float] = {}
        self._silent: Counter[tuple[Scope, Reason]] = Counter()

    def add(self, scope: Scope, reason: Reason, peer: str, message: str, bug: BaseException | None = None) -> None:
        """Count and log a rejection. `bug`: an exception of the picker, whose traceback is logged."""
        self._count(scope, reason)
        key, now = (scope, reason), self._clock()
        if now < self._next.get(key, now):
            self._silent[key] += 1
            return
        self._next[key] = now + _EVERY_S
        level = logging.ERROR if bug else logging.WARNING
        log.log(
            level,
            "%s of %s: %s: %s (%d before it)",
            scope,
            peer,
            reason,
            message,
            self._silent.pop(key, 0),
            exc_info=bug,
        )
