"""Models whose objectives differ in one pool: tokens on time of those with much time and of those with little.

Four GPUs with the costs of h800-policy; every other model has the loose objective. Policy slack, the same that ranks by
due times alone (`RELATIVE_POWER` 0), and baselines on the same arrivals.
Run: python -m benchmarks.objectives [WORLD ...] [--seeds 1,2,3] [--policies slack,...]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from statistics import fmean

from benchmarks.ablation_rules import instead
from benchmarks.goodput import LENGTHS, PROCESSES
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.policies.slack import order
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths, poisson

GPUS = 4
SECONDS = 80.0  # of arrivals
DRAIN_S = 300.0
DUE_TIMES = "slack by due times"
POLICIES = ("slack", DUE_TIMES, "prism", "serverlessllm-fair", "vllm-sleep")
AHEAD = 0.0  # points by which a baseline may be better for both kinds of models


@dataclass(frozen=True, slots=True)
class World:
    """Models, requests per second of each, both objectives, and what share of the tokens of either is to be on time."""

    models: int
    rate: float
    loose: Slo
    strict: Slo
    bars: tuple[float, float] = (0.0, 0.0)


WORLDS = {
    "60/8 s": World(56, 0.12, Slo(60.0, 0.1), Slo(8.0, 0.1), (0.97, 0.97)),
    "30/2 s, TBT 200/50 ms": World(44, 0.12, Slo(30.0, 0.2), Slo(2.0, 0.05), (0.97, 0.92)),
    "8/0.5 s": World(30, 0.12, Slo(8.0, 0.1), Slo(0.5, 0.1)),
    "60/1 s": World(40, 0.12, Slo(60.0, 0.1), Slo(1.0, 0.1)),
}
Shares = tuple[float, float]
"""of the tokens on time: those of models with the loose objective, and with the strict one"""


def shares(name: str, policy: str, seed: int) -> Shares:
    """Of one run."""
    world = WORLDS[name]
    workload = poisson(Lengths.read(LENGTHS), models=world.models, rate=world.rate, duration_s=SECONDS, seed=seed)
    slos = tuple(world.loose if model % 2 else world.strict for model in range(world.models))
    core = "slack" if policy == DUE_TIMES else policy
    settings = Settings(core, Split(unified=GPUS), world.strict, DRAIN_S, slos=slos)
    run = Run(settings, workload, read_device("h800-policy"), seed)
    power = 0.0 if policy == DUE_TIMES else order.RELATIVE_POWER
    with instead([(order, "RELATIVE_POWER", power)]):
        outcome = simulate(run)
    return _token(outcome, slos, 1), _token(outcome, slos, 0)


def _token(outcome: Outcome, slos: tuple[Slo, ...], odd: int) -> float:
    of = (request for request in outcome.requests if request.model % 2 == odd)
    return attainment((request.times, slos[request.model], request.length) for request in of).token


def rows(name: str, means: dict[str, Shares]) -> list[Row]:
    """Of one world: the bars are slack's."""
    world, (loose, strict) = WORLDS[name], means["slack"]
    figures = [
        Row(f"{name}: loose objective: slack", loose, "share", world.bars[0] or None),
        Row(f"{name}: strict objective: slack", strict, "share", world.bars[1] or None),
    ]
    for policy, (of_loose, of_strict) in means.items():
        if policy != "slack":
            figures.append(Row(f"{name}: loose objective: {policy}", of_loose, "share"))
            figures.append(Row(f"{name}: strict objective: {policy}", of_strict, "share"))
    baselines = [share for policy, share in means.items() if policy not in ("slack", DUE_TIMES)]
    ahead = max((min(of_loose - loose, of_strict - strict) for of_loose, of_strict in baselines), default=-1.0)
    return [*figures, Row(f"{name}: least lead of a baseline over slack in both", 100 * ahead, "points", AHEAD, "<=")]


def main() -> int:
    """Every world, policy and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", default=list(WORLDS), metavar="WORLD")
    parser.add_argument("--seeds", default="760,1097,25")  # digits of the hash of the commit that was measured first
    parser.add_argument("--policies", default=",".join(POLICIES))
    arguments = read_settings(parser)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    figures: list[Row] = []
    with processes(PROCESSES) as pool:
        runs = {
            (name, policy): [pool.submit(shares, name, policy, seed) for seed in seeds]
            for name in arguments.worlds
            for policy in arguments.policies.split(",")
        }
        for name in arguments.worlds:
            means: dict[str, Shares] = {}
            for policy in arguments.policies.split(","):
                by_seed = [future.result() for future in runs[name, policy]]
                print(name, policy, [f"{100 * a:.1f}, {100 * b:.1f}" for a, b in by_seed], flush=True)
                means[policy] = fmean(a for a, _ in by_seed), fmean(b for _, b in by_seed)
            figures += rows(name, means)
    return 0 if report("objectives", figures, arguments.short) else 1


if __name__ == "__main__":
    sys.exit(main())
