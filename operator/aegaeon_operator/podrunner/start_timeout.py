"""The start timeout of a process, which does not run while the process computes."""

from __future__ import annotations

from collections.abc import Callable

_LEAST_S = 0.05  # CPU seconds; a waiting process uses less within the timeout


class StartTimeout:
    """A timeout of `idle_s` without CPU use. `clock`: seconds."""

    def __init__(self, idle_s: float, report_every_s: float, clock: Callable[[], float]) -> None:
        self._idle_s, self._report_every_s, self._clock = idle_s, report_every_s, clock
        self._began = self._worked = self._reported = clock()
        self._computed_s = 0.0

    @property
    def waited_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    def lasts(self, computed_s: float) -> bool:
        """Return whether the timeout has not expired. `computed_s`: CPU seconds of the process, reset by restarts."""
        if abs(computed_s - self._computed_s) >= _LEAST_S:
            self._computed_s, self._worked = computed_s, self._clock()
        return self._clock() - self._worked < self._idle_s

    def is_to_report(self) -> bool:
        """Return whether a message about the wait is due."""
        if self._clock() - self._reported < self._report_every_s:
            return False
        self._reported = self._clock()
        return True
