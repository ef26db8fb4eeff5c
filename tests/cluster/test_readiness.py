"""How long a pool has said Ready while nothing was answered: the longest of a campaign."""

from __future__ import annotations

import pytest
from e2e.chaos.readiness import Sample, untrue_s


def said(*, ready: range, of: int) -> list[Sample]:
    """A sample each second."""
    return [(float(at), at in ready) for at in range(of)]


@pytest.mark.parametrize(
    ("samples", "answers", "longest"),
    [
        (said(ready=range(30), of=30), [float(at) for at in range(30)], 0.0),
        (said(ready=range(30), of=30), [0.0, 1.0, 20.0, 29.0], 18.0),  # from 1 to the last sample before 20
        (said(ready=range(8), of=30), [0.0, 1.0], 6.0),  # then it says so
        (said(ready=range(10, 30), of=30), [0.0, 25.0], 14.0),  # Ready again long before it answers
        (said(ready=range(30), of=30), [], 29.0),
        ([], [1.0], 0.0),
    ],
)
def test_silence_counts_as_long_as_the_pool_says_ready(
    samples: list[Sample], answers: list[float], longest: float
) -> None:
    assert untrue_s(samples, answers) == longest
