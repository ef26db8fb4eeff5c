"""Longer turns while the event loop is late: each turn costs a command and a report, however many steps it has.

Engines with short turns demand as many reports a second for as long as anything runs, so a loop that cannot keep up
with them is late until the last request has ended. The lag of one moment (a scrape, a start) is no reason: it has to
stand.
"""

from __future__ import annotations

from aegaeon_scheduler.core.events import TurnsStretched
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.lag import LIMIT_S

MOST = 8
"""times as many steps: then most events are those that requests cost, whatever their turns are"""
STANDING_S = LIMIT_S / 2
"""longer turns come before requests have to wait"""
IN_A_ROW = 3
"""measurements of such a lag make it a standing one"""
CALM_S = 2.0
"""without such a lag, turns become shorter by one step of the factor"""


class TurnSteps:
    """Doubles the factor while a lag stands, and lowers it by one after each `CALM_S` in which none was measured: the
    factor that this load needs is approached from above."""

    def __init__(self, driver: Driver) -> None:
        self.factor = 1
        self._driver = driver
        self._late = 0  # measurements in a row
        self._calm_since = driver.clock()

    def measured(self, lag_s: float) -> None:
        """Take a measurement of the lag, seconds."""
        if self._driver.waits:
            return  # nothing runs
        now = self._driver.clock()
        self._late = self._late + 1 if lag_s > STANDING_S else 0
        if self._late:
            self._calm_since = now
        if self._late == IN_A_ROW:
            self._late = 0
            self._set(min(MOST, 2 * self.factor))
        elif now - self._calm_since >= CALM_S:
            self._calm_since = now
            self._set(max(1, self.factor - 1))

    def _set(self, factor: int) -> None:
        if factor != self.factor:
            self.factor = factor
            self._driver.handle(TurnsStretched(factor))
