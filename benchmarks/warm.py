"""The warm set of policy slack: the first request of a model after silence, with and without it; in virtual time.

Run: python -m benchmarks.warm [--speedup 1] [--seconds 900] [--silence 30]. Trace market100, 16 GPUs, costs of
`h800-policy`; lengths cut as in docs/evaluation.md. A model is silent from the end of its last answer on. Its first
decode step on an engine takes 0.2 s longer, unless the engine had nothing to do before and took a turn that warms up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.goodput import FIRST_S, LENGTHS
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.figures.points import Point, Trace, run_of
from aegaeon_simulator.results.outcome import Served
from aegaeon_simulator.run import simulate
from aegaeon_simulator.settings import Split

SLO = Slo(10.0, 0.1)
BEGUN_S = 60.0  # of the run: before that the warm set is filled


@dataclass(frozen=True, slots=True)
class Firsts:
    """TTFT in seconds: of requests after silence, and of the first that a model ever gets; share of tokens on time;
    share of the first answers of models that pause for as long as a first step takes."""

    silent: list[float]
    ever: list[float]
    on_time: float
    paused: float


def firsts(speedup: float, seconds: float, silence_s: float, warm: bool) -> Firsts:
    """Of one run."""
    work = Trace(
        "market100_arrivals.csv.gz", "market100_models.csv", speedup=speedup, window_s=seconds,
        most_input=4000, most_output=2000,
    )  # fmt: skip
    run = run_of(Point("slack", "h800-policy", Split(unified=16), SLO, work), LENGTHS.parent)
    device = replace(run.device, first_s=FIRST_S)
    outcome = simulate(replace(run, settings=replace(run.settings, warm=warm), device=device))
    silent, ever = _first(outcome.requests, silence_s)
    return Firsts(silent, ever, outcome.attainment(SLO).token, _paused(outcome.requests))


def _paused(requests: Sequence[Served]) -> float:
    """Of the first answer of each model that has several tokens, where there was time to load it ahead."""
    first: dict[int, Served] = {}
    for request in requests:
        if len(request.times) > 1:
            first.setdefault(request.model, request)
    later = [request for request in first.values() if request.arrival_s >= BEGUN_S]
    return sum(float(max(np.diff(request.times))) >= FIRST_S for request in later) / max(len(later), 1)


def _first(requests: Sequence[Served], silence_s: float) -> tuple[list[float], list[float]]:
    """TTFT of requests after silence, and of those that are their model's first ever."""
    silent, ever = [], []
    ends: dict[int, float] = {}
    for r in requests:
        if r.model not in ends:
            ever.append(r.times[0])
        elif r.arrival_s - ends[r.model] >= silence_s:
            silent.append(r.times[0])
        ends[r.model] = max(ends.get(r.model, 0.0), r.arrival_s + r.times[-1])
    return silent, ever


def rows(without: Firsts, found: Firsts) -> list[Row]:
    """Those without are the peer."""
    p50, p99 = (float(np.quantile(without.silent, q)) for q in (0.5, 0.99))
    return [
        Row("after silence: TTFT p99", float(np.quantile(found.silent, 0.99)), "s", p99, "<=", 0.5),
        Row("after silence: TTFT p50", float(np.quantile(found.silent, 0.5)), "s", p50, "<="),
        Row("after silence: requests", len(found.silent), ""),
        Row(
            "first ever: TTFT p50",
            float(np.quantile(found.ever, 0.5)),
            "s",
            float(np.quantile(without.ever, 0.5)),
            "<=",
        ),
        Row("first ever: TTFT p99, without", float(np.quantile(without.ever, 0.99)), "s"),
        Row("first ever: TTFT p99", float(np.quantile(found.ever, 0.99)), "s"),
        Row("first answers that pause for a first step, without", without.paused, "share"),
        Row("first answers that pause for a first step", found.paused, "share", without.paused, "<="),
        Row("tokens on time", found.on_time, "share", without.on_time),
    ]


def main() -> int:
    """Print and keep every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speedup", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--silence", type=float, default=30.0)
    chosen = read_settings(parser)
    each = [firsts(chosen.speedup, chosen.seconds, chosen.silence, warm) for warm in (False, True)]
    return 0 if report("warm", rows(*each), chosen.short) else 1


if __name__ == "__main__":
    sys.exit(main())
