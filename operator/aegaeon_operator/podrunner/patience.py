"""How long a process that starts is waited for: as long as it computes."""

from __future__ import annotations

from collections.abc import Callable

_LEAST_S = 0.05  # CPU seconds: what waits for something uses less in a whole timeout


class Patience:
    """Ends when `idle_s` have passed without work. `clock`: seconds."""

    def __init__(self, idle_s: float, report_every_s: float, clock: Callable[[], float]) -> None:
        self._idle_s, self._report_every_s, self._clock = idle_s, report_every_s, clock
        self._began = self._worked = self._reported = clock()
        self._computed_s = 0.0

    @property
    def waited_s(self) -> float:
        """Since the beginning."""
        return self._clock() - self._began

    def lasts(self, computed_s: float) -> bool:
        """`computed_s`: CPU seconds of the process until now; fewer than before are of one that was started again."""
        if abs(computed_s - self._computed_s) >= _LEAST_S:
            self._computed_s, self._worked = computed_s, self._clock()
        return self._clock() - self._worked < self._idle_s

    def is_to_report(self) -> bool:
        """Whether a line about it is due."""
        if self._clock() - self._reported < self._report_every_s:
            return False
        self._reported = self._clock()
        return True
