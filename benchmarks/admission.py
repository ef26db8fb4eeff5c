"""Admission `feasible` at 1.2 times the loads that policy slack carries: how soon it refuses, what it keeps.

Run: python -m benchmarks.admission [POINT ...] [--seeds 61,62]. A point is one of benchmarks.goodput, its models
over four engines instead of sixteen, times 1.2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
from benchmarks.goodput import GPUS, LENGTHS, POINTS, Point, by_point, points
from benchmarks.report import Row, report

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.results.outcome import Served
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths, poisson

ENGINES = 4
OVERLOAD = 1.2
AT_ONCE_S = 0.1
NAMES = ("0.1", "0.5", "x0.5", "x0.3", "x0.2")
REFUSED_BAR, KEPT_BAR = 0.9, 0.95
TTFT_BAR = 2.0  # of the objective


@dataclass(frozen=True, slots=True)
class Kept:
    """Of one run: refusals, those of them at once; shares of tokens on time; seconds."""

    refused: int
    at_once: int
    admitted: float
    all: float
    ttft_p99_s: float


def models_of(point: Point) -> int:
    """How many models of a point stand here for it."""
    return round(point.models * ENGINES / GPUS * OVERLOAD)


def run_of(point: Point, seed: int, seconds: float) -> Run:
    """The run of a point with arrivals for so many seconds."""
    work = poisson(Lengths.read(LENGTHS), models=models_of(point), rate=point.rate, duration_s=seconds, seed=seed)
    settings = Settings("slack", Split(unified=ENGINES), point.slo, admission="feasible")
    return Run(settings, work, read_device(point.device), seed)


def kept(point: Point, seed: int, seconds: float) -> Kept:
    """Refusals that come later than `AT_ONCE_S` count as admitted: the word was given."""
    run = run_of(point, seed, seconds)
    requests = simulate(run).requests
    admitted = [r for r in requests if not _at_once(r)]
    ttft = [r.times[0] for r in admitted if r.times]
    slo = run.settings.slo
    return Kept(
        sum(r.refused for r in requests),
        len(requests) - len(admitted),
        _share(admitted, slo),
        _share(requests, slo),
        float(np.quantile(ttft, 0.99)),
    )


def _at_once(request: Served) -> bool:
    return request.refused_s is not None and request.refused_s <= AT_ONCE_S


def _share(requests: Sequence[Served], slo: Slo) -> float:
    return attainment((r.times, slo, r.length) for r in requests).token


def rows(name: str, found: Sequence[Kept]) -> list[Row]:
    """All refusals of a point together, and the means of the seeds; each seed's own are printed."""
    refused = sum(one.refused for one in found)
    at_once = sum(one.at_once for one in found) / refused if refused else 1.0
    what, slo = f"{models_of(POINTS[name])} models on {ENGINES} engines, {name}", POINTS[name].slo
    return [
        Row(f"{what}: refusals at once", at_once, "share", REFUSED_BAR),
        Row(f"{what}: tokens of admitted on time", mean(one.admitted for one in found), "share", KEPT_BAR),
        Row(f"{what}: worst seed", min(one.admitted for one in found), "share"),
        Row(f"{what}: tokens of all on time", mean(one.all for one in found), "share"),
        Row(f"{what}: TTFT p99 of admitted", max(one.ttft_p99_s for one in found), "s", TTFT_BAR * slo.ttft_s, "<="),
    ]


def main() -> int:
    """Print and keep every point's figures."""
    found: list[Row] = []
    chosen = points(__doc__, NAMES, "61,62", 100.0)
    for name, of in by_point(chosen, kept):
        for seed, one in of.items():
            shares = f"admitted {one.admitted:.4f}, all {one.all:.4f}, TTFT p99 {one.ttft_p99_s:.2f} s"
            print(f"{name}, seed {seed}: {one.at_once} of {one.refused} refusals at once, {shares}", flush=True)
        found += rows(name, list(of.values()))
    return 0 if report("admission", found, chosen.short) else 1


if __name__ == "__main__":
    sys.exit(main())
