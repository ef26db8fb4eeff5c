"""How far a transfer is: the rate over the last seconds, and what is left at this rate."""

from __future__ import annotations

import pytest

from aegaeon_sidecar.weights.pace import Pace


def test_the_rate_is_that_of_the_last_seconds_and_estimates_the_rest() -> None:
    pace = Pace()
    for second in range(11):  # 1 MB/s, then 3 MB/s from second 5 on
        pace.note(second * 1_000_000 + max(second - 5, 0) * 2_000_000, 30_000_000, float(second))
    assert pace.bytes_per_s == pytest.approx(3e6)
    assert pace.remaining_s == pytest.approx((30e6 - 20e6) / 3e6)
    assert str(pace) == "0.02 of 0.03 GB, 3 MB/s, 3 s to go"


def test_no_rate_is_known_at_the_start_of_each_transfer() -> None:
    pace = Pace()
    assert (pace.bytes_per_s, pace.remaining_s) == (0.0, 0.0)
    pace.note(0, 100, 0.0)
    pace.note(50, 100, 1.0)
    assert pace.bytes_per_s == 50
    pace.note(10, 200, 2.0)
    assert (pace.bytes_per_s, pace.remaining_s) == (0.0, 0.0)
    pace.note(20, 200, 2.0)
    assert pace.bytes_per_s == 0.0
