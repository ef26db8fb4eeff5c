"""Models that 16 GPUs carry with 90 % of the tokens on time: policy slack, and policy paper at its best setting.

Costs, lengths and seconds are those of Figures 11a, 11b and 13; loads rise until both fall below. `--tune` sweeps Q_MAX
and the split of `paper` at a load near its limit, on a seed that is not reported: data/tuned.json.
Run: python -m benchmarks.crossings [POINT ...] [--seeds 1,2,3] [--tune]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from benchmarks.drawn import head, seeds
from benchmarks.goodput import GPUS, LENGTHS, POINTS, PROCESSES
from benchmarks.report import Row, read_settings, report
from benchmarks.tuned import Chosen, applied, best
from benchmarks.tuning import record

from aegaeon_simulator.devices import read_device
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.results.attainment_curve import crossing
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths, poisson

POLICIES = ("slack", "paper")
TUNED_SEED, TUNED_S = 7, 60.0
Q_MAX_S, PREFILL = (0.5, 1.0), (3, 4, 5, 6)
PUBLISHED: Chosen = {"q_max_s": 4.0, "prefill": 6.0}  # what `make figures` runs


@dataclass(frozen=True, slots=True)
class Loads:
    """Models by policy; settings of `paper` are compared at `near`."""

    slack: tuple[int, ...]
    paper: tuple[int, ...]
    near: int


LOADS = {
    "0.1": Loads((200, 216, 232), (132, 142, 152), 136),
    "0.5": Loads((116, 128, 140), (76, 88, 100), 88),
    "x0.5": Loads((120, 132, 144), (72, 86, 100), 86),
    "x0.3": Loads((92, 102, 112), (56, 68, 80), 68),
    "x0.2": Loads((74, 84, 94), (44, 54, 64), 54),
}


def panel_of(point: str) -> str:
    """Name of a point among the records of tuned settings."""
    return f"16 GPUs, {point}"


def attained(point: str, policy: str, models: int, seed: int, seconds: float, chosen: Chosen | None = None) -> float:
    """Share of tokens on time of a run; without settings that are tried, with the best that are recorded."""
    at = POINTS[point]
    work = poisson(Lengths.read(LENGTHS), models=models, rate=at.rate, duration_s=seconds, seed=seed)
    settings = Settings(policy, Split(unified=GPUS), at.slo)
    settings = best(policy, panel_of(point), settings) if chosen is None else applied(settings, chosen)
    return simulate(Run(settings, work, read_device(at.device), seed)).attainment(at.slo).token


def tune(points: list[str]) -> None:
    """Sweep the settings of `paper`, and record the best of each point."""
    with processes(PROCESSES) as pool:
        for point in points:
            each = [{"q_max_s": q, "prefill": float(p)} for q, p in product(Q_MAX_S, PREFILL)] + [PUBLISHED]
            near = LOADS[point].near
            runs = [pool.submit(attained, point, "paper", near, TUNED_SEED, TUNED_S, chosen) for chosen in each]
            shares = [run.result() for run in runs]
            tried: list[dict[str, object]] = [
                {**chosen, "tokens on time": share} for share, chosen in zip(shares, each, strict=True)
            ]
            line = record(panel_of(point), "paper", tried, TUNED_SEED)
            print(point, f"{near} models", line["chosen"], max(shares), flush=True)


def rows(point: str, policy: str, curve: list[tuple[float, float]]) -> list[Row]:
    """Attainment at each load, and where it falls below 90 %."""
    of = f"{point}: {policy}" + " at its best setting" * (policy != "slack")
    lines = [Row(f"{of}: tokens on time of {models:g} models", share, "share") for models, share in curve]
    at = crossing(curve)
    return [*lines, Row(f"{of}: models at 90 %", at or curve[-1][0], "models" if at else "models or more")]


def main() -> int:
    """Every point, policy and load; the means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("points", nargs="*", default=["0.1"], metavar="POINT")
    parser.add_argument("--seeds", dest="seed", default="", help="by default three of the commit's hash")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--jobs", type=int, default=PROCESSES)
    options = read_settings(parser)
    if options.tune:
        tune(options.points)
        return 0
    each = [int(seed) for seed in options.seed.split(",")] if options.seed else seeds(3, head())
    lines = [Row("seed", float(seed), "") for seed in each]
    with processes(options.jobs) as pool:
        runs = {
            (point, policy, models): [
                pool.submit(attained, point, policy, models, seed, options.seconds) for seed in each
            ]
            for point in options.points
            for policy in POLICIES
            for models in getattr(LOADS[point], policy)
        }
        for point in options.points:
            for policy in POLICIES:
                curve = [
                    (float(models), fmean(run.result() for run in runs[point, policy, models]))
                    for models in getattr(LOADS[point], policy)
                ]
                print(point, policy, [(models, round(100 * share, 1)) for models, share in curve], flush=True)
                lines += rows(point, policy, curve)
            ours, theirs = (
                row.value for row in lines if row.figure.startswith(point) and row.figure.endswith("at 90 %")
            )
            lines.append(Row(f"{point}: models of slack over those of paper at its best setting", ours / theirs, ""))
    return 0 if report("crossings", lines, options.short) else 1


if __name__ == "__main__":
    sys.exit(main())
