"""The three forms of SLO attainment. They differ a lot, so all three are reported.

`times` are the seconds since arrival at which tokens came. A request that was never served counts 0, never as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aegaeon_scheduler.core.domain import Slo


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares in 0..1; `token` pools all tokens, `request` and `time` average over requests."""

    token: float
    request: float
    time: float
    requests: int


def tokens_on_time(times: Sequence[float], slo: Slo) -> int:
    """How many k have times[k] <= ttft + k * tbt."""
    return sum(1 for k, x in enumerate(times) if x <= slo.ttft_s + k * slo.tbt_s)


def time_attained(times: Sequence[float], slo: Slo) -> float:
    """Share of a request's time in which its reader was supplied; the clock restarts after each miss."""
    if not times:
        return 0.0
    if tokens_on_time(times, slo) == len(times):
        return 1.0
    attained = start = since = 0.0
    allowance = slo.ttft_s
    for x in times:
        if x - start <= allowance:
            since = allowance
        else:
            attained += since
            start, since = x, 0.0
        allowance += slo.tbt_s
    last = times[-1]
    return (attained + min(allowance, last - start)) / last


def attainment(requests: Iterable[tuple[Sequence[float], Slo, int]]) -> Attainment:
    """All three over (token times, objective, tokens expected) of each request; expected tokens never sent are late."""
    on_time = expected_sum = count = 0
    request_sum = time_sum = 0.0
    for times, slo, known in requests:
        met, expected = tokens_on_time(times, slo), max(known, len(times), 1)
        count += 1
        on_time += met
        expected_sum += expected
        request_sum += met / expected
        time_sum += time_attained(times, slo)
    if not count:
        return Attainment(1.0, 1.0, 1.0, 0)
    return Attainment(on_time / expected_sum, request_sum / count, time_sum / count, count)
