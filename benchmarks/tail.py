"""What admission control gives under overload, at 1.2 times the load that 90 % are met at: TTFT p99, tokens on time of
those admitted, and how many of the refusals came at once.

Policy slack with `admission: feasible`. The load is found first, without admission: models are added in steps of
`STEP` to the point of benchmarks.goodput until fewer than 90 % of tokens are on time. Refusals count as misses.
Run: python -m benchmarks.tail [POINT ...] [--seeds 1,2,3] [--seconds 300]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace

from benchmarks.goodput import BAR, POINTS, PROCESSES, Point, run_of
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.run import simulate

STEP = 1.04
OVERLOAD = 1.2
LIMIT = 2.0  # of the objective, for p99 of who is admitted
AT_ONCE_S = 0.1  # from the arrival to a refusal
AT_ONCE, ADMITTED = 0.9, 0.95  # shares of refusals, of tokens of those not refused at once


@dataclass(frozen=True, slots=True)
class Tail:
    """One overloaded run. Seconds; `token` is the share on time of all tokens that were due, `admitted` of those whose
    requests were not refused at once.
    """

    carried: int
    models: int
    p99_s: float
    most_s: float
    token: float
    admitted: float
    refused: int
    at_once: int
    offered: int


def carried(point: Point, seed: int, seconds: float) -> int:
    """The most models, in steps, of whose tokens 90 % are on time."""
    models = point.models
    while True:
        more = round(models * STEP)
        run = run_of(replace(point, models=more), seed, seconds)
        if simulate(run).attainment(run.settings.slo).token < BAR:
            return models
        models = more


def overloaded(name: str, seed: int, seconds: float) -> Tail:
    """A run at OVERLOAD times what is carried, with admission."""
    point = POINTS[name]
    base = carried(point, seed, seconds)
    models = round(base * OVERLOAD)
    run = run_of(replace(point, models=models), seed, seconds)
    outcome = simulate(replace(run, settings=replace(run.settings, admission="feasible")))
    first = sorted(one.times[0] for one in outcome.requests if one.times and not one.refused)
    token = outcome.attainment(run.settings.slo).token
    refused = [one.refused_s for one in outcome.requests if one.refused_s is not None]
    kept = [one for one in outcome.requests if one.refused_s is None or one.refused_s > AT_ONCE_S]
    admitted = attainment((one.times, run.settings.slo, one.length) for one in kept).token
    at_once = sum(seconds <= AT_ONCE_S for seconds in refused)
    p99_s = first[min(len(first) - 1, int(0.99 * len(first)))]
    return Tail(base, models, p99_s, first[-1], token, admitted, len(refused), at_once, len(outcome.requests))


def rows(name: str, seed: int, tail: Tail) -> list[Row]:
    """Of one run."""
    what = f"{name}, seed {seed}, {tail.models} models, {OVERLOAD:g} times {tail.carried}"
    limit = LIMIT * run_of(POINTS[name], seed, 1.0).settings.slo.ttft_s
    return [
        Row(f"{what}: TTFT p99 of admitted", tail.p99_s, "s", limit, "<="),
        Row(f"{what}: the latest", tail.most_s, "s"),
        Row(f"{what}: refusals made at once", tail.at_once / max(1, tail.refused), "share", AT_ONCE),
        Row(f"{what}: tokens on time of admitted", tail.admitted, "share", ADMITTED),
        Row(f"{what}: tokens on time of all", tail.token, "share"),
        Row(f"{what}: refused", tail.refused / tail.offered, "of all"),
    ]


def main() -> int:
    """Every point and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", default=["0.1", "0.5", "x0.2"], metavar="POINT")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--seconds", type=float, default=300.0)
    chosen = read_settings(parser)
    found: list[Row] = []
    with processes(PROCESSES) as pool:
        seeds = [int(seed) for seed in chosen.seeds.split(",")]
        runs = [(n, s, pool.submit(overloaded, n, s, chosen.seconds)) for n in chosen.points for s in seeds]
        for name, seed, future in runs:
            print(name, seed, future.result(), flush=True)
            found += rows(name, seed, future.result())
    return 0 if report("tail", found, chosen.short) else 1


if __name__ == "__main__":
    sys.exit(main())
