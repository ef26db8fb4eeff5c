"""Turns become longer while a lag stands, and shorter again once it is over."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from aegaeon_scheduler.core import events
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.lag import LIMIT_S
from aegaeon_scheduler.service.turn_steps import CALM_S, IN_A_ROW, MOST, STANDING_S, TurnSteps

EVERY_S = 0.02


class Measured:
    """Turn steps on a clock of its own, and the factors that the core received."""

    def __init__(self, brain: Any) -> None:
        self.now = 0.0
        self.brain = brain
        self.driver = Driver(brain, lambda: self.now)
        self.steps = TurnSteps(self.driver)

    def late(self, lag_s: float, seconds: float) -> list[int]:
        """Measure this lag for so long; returns the factors that follow."""
        before = len(self._factors())
        for _ in range(round(seconds / EVERY_S)):
            self.now += EVERY_S
            self.steps.measured(lag_s)
        return self._factors()[before:]

    def _factors(self) -> list[int]:
        return [event.factor for event in self.brain.all_of(events.TurnsStretched)]


@pytest.fixture
def measured(brain: Any) -> Measured:
    return Measured(brain)


async def test_a_scheduler_in_time_says_nothing(measured: Measured) -> None:
    assert measured.late(0.9 * STANDING_S, 60.0) == []


async def test_a_standing_lag_doubles_the_factor_and_its_end_lowers_it_bit_by_bit(measured: Measured) -> None:
    assert measured.late(2 * STANDING_S, 1.0) == [2, 4, MOST]
    assert measured.late(0.0, CALM_S - 0.1) == []
    assert measured.late(0.0, 7 * CALM_S) == [7, 6, 5, 4, 3, 2, 1]
    assert measured.late(0.0, 60.0) == []


async def test_the_lag_of_a_moment_lengthens_nothing_but_keeps_turns_long(measured: Measured) -> None:
    for _ in range(100):
        assert measured.late(10.0, (IN_A_ROW - 1) * EVERY_S) == []
        assert measured.late(0.0, EVERY_S) == []
    assert measured.late(10.0, IN_A_ROW * EVERY_S) == [2]
    for _ in range(100):
        assert measured.late(0.0, CALM_S / 2) == []
        assert measured.late(10.0, EVERY_S) == []


async def test_one_that_stands_by_says_nothing(measured: Measured) -> None:
    measured.driver.wait()
    assert measured.late(10.0, 10.0) == []
    measured.driver.begin()
    assert measured.late(10.0, IN_A_ROW * EVERY_S) == [2]


async def test_a_service_that_is_late_says_so_to_its_core_and_in_its_metrics(serve: Any, brain: Any) -> None:
    async with serve(brain, metrics_listen=None) as stack:
        async with asyncio.timeout(60):
            while not brain.all_of(events.TurnsStretched):
                time.sleep(2 * LIMIT_S)  # noqa: ASYNC251  # the loop is late
                await asyncio.sleep(0.001)
        assert brain.all_of(events.TurnsStretched)[0].factor == 2
        page = (await stack.service._render()).decode()
    assert f"aegaeon_scheduler_turn_factor {stack.service._turn_steps.factor}.0" in page
