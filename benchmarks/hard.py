"""Loads at which policy slack must price what it does: long prompts, hot models, little memory; in virtual time.

Run: python -m benchmarks.hard [PANEL ...] [--seeds 21,22,23]. Panels without random arrivals run once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import numpy as np
from benchmarks.bound import most_on_time
from benchmarks.goodput import LENGTHS, PROCESSES
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.domain import Slo, Terms, Tier
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.figures.points import Point, Trace
from aegaeon_simulator.figures.points import run_of as figure_run
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.results.outcome import Outcome, Served
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival, Lengths, Workload, poisson
from aegaeon_simulator.workload.kinds import LLAMA_13B, QWEN_7B

SLO = Slo(10.0, 0.1)
GB = 10**9
SECONDS = 60.0  # of a trace
LONG_TOKENS = 100_000
HOST_GB = (8, 16, 32, 64)
"""of an engine, for KV that is preempted"""


@dataclass(frozen=True, slots=True)
class Panel:
    """`rows`: of one seed, by figure; `bars`: what each is held to."""

    rows: Callable[[int], dict[str, float]]
    bars: dict[str, tuple[float, str]]
    random: bool = True


def share(requests: Sequence[Served]) -> float:
    """Of tokens on time."""
    return attainment((r.times, SLO, r.length) for r in requests).token


def _of(outcome: Outcome, models: range) -> list[Served]:
    return [r for r in outcome.requests if r.model in models]


# -- long prompts of a batch tier beside an interactive model, on one engine ------------------------------------------


def _long_prompts(seed: int, at_once: int) -> dict[str, float]:
    short = poisson(Lengths.read(LENGTHS), models=1, rate=1.0, duration_s=120.0, seed=seed, kind=lambda m: QWEN_7B)
    long = [Arrival(10.0 + 15.0 * k, 1 + i, LONG_TOKENS, 50) for k in range(7) for i in range(at_once)]
    arrivals = tuple(sorted((*short.arrivals, *long), key=lambda a: a.t_s))
    terms = (Terms(Tier.INTERACTIVE), *[Terms(Tier.BATCH)] * at_once)
    work = Workload((QWEN_7B,) * (1 + at_once), arrivals, terms=terms)
    run = Run(Settings("slack", Split(unified=1), SLO), work, read_device("h800-policy"), seed)
    outcome = simulate(run)
    first = _of(outcome, range(1))
    ttft = [r.times[0] for r in first if r.times]
    name = "one at a time" if at_once == 1 else f"{at_once} at once"
    return {
        f"100k prompts, {name}: interactive TTFT p95, s": float(np.quantile(ttft, 0.95)),
        f"100k prompts, {name}: interactive tokens on time": share(first),
        f"100k prompts, {name}: batch tokens on time": share(_of(outcome, range(1, 1 + at_once))),
    }


# -- a trace of long prompts, its lengths not cut ---------------------------------------------------------------------


def _mooncake(policy: str, speedup: float, gpus: int, cap: int = 0) -> Run:
    work = Trace(
        "mooncake_conversation.csv.gz", speedup=speedup, window_s=SECONDS, single=True,
        most_input=cap, most_output=2000,
    )  # fmt: skip
    return figure_run(Point(policy, "h800-policy", Split(unified=gpus), SLO, work), LENGTHS.parent)


def _hot_trace(_: int) -> dict[str, float]:
    found = {}
    for policy in ("slack", "serverlessllm"):
        run = _mooncake(policy, 8.0, 16)
        found[f"mooncake x8, not cut, {policy}: tokens on time"] = share(simulate(run).requests)
    found["mooncake x8, not cut: bound of the work"] = most_on_time(run, 16, SLO)
    found["mooncake x8, 4,000 tokens: tokens on time"] = share(simulate(_mooncake("slack", 8.0, 16, 4000)).requests)
    return found


def _beside(seed: int) -> dict[str, float]:
    hot = _mooncake("slack", 4.0, 16)
    others = poisson(Lengths.read(LENGTHS), models=80, rate=0.1, duration_s=SECONDS, seed=seed)
    shifted = [replace(a, model=a.model + 1) for a in others.arrivals]
    arrivals = tuple(sorted((*hot.workload.arrivals, *shifted), key=lambda a: a.t_s))
    outcome = simulate(replace(hot, workload=Workload((QWEN_7B, *others.kinds), arrivals)))
    return {
        "80 models beside mooncake x4: their tokens on time": share(_of(outcome, range(1, 81))),
        "80 models beside mooncake x4: the hot one's": share(_of(outcome, range(1))),
    }


# -- more host memory must not hurt -----------------------------------------------------------------------------------


def _host_memory(seed: int) -> dict[str, float]:
    found = {}
    work = poisson(Lengths.read(LENGTHS), models=12, rate=0.5, duration_s=60.0, seed=seed, kind=lambda m: LLAMA_13B)
    for size in HOST_GB:
        device = replace(read_device("h800-policy"), model_bytes=34 * GB, host_kv_bytes=size * GB)
        outcome = simulate(Run(Settings("slack", Split(unified=4), SLO), work, device, seed))
        found[f"12 x 13B, four engines of 34 GB, {size} GB for KV on the host: tokens on time"] = share(
            outcome.requests
        )
    return found


PANELS = {
    "long": Panel(
        lambda seed: _long_prompts(seed, 1) | _long_prompts(seed, 2),
        {
            "100k prompts, one at a time: interactive TTFT p95, s": (0.3, "<="),
            "100k prompts, 2 at once: interactive tokens on time": (0.98, ">="),
        },
    ),
    "hot": Panel(_hot_trace, {}, random=False),
    "beside": Panel(_beside, {"80 models beside mooncake x4: their tokens on time": (0.99, ">=")}),
    "host": Panel(_host_memory, {}),
}


def main() -> int:
    """Print and keep every panel's figures: the means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("panels", nargs="*", choices=[[], *PANELS], metavar="PANEL")
    parser.add_argument("--seeds", default="21,22,23")
    chosen = read_settings(parser)
    seeds = [int(seed) for seed in chosen.seeds.split(",")]
    found: list[Row] = []
    with processes(PROCESSES) as pool:
        names = chosen.panels or list(PANELS)
        runs = {n: [pool.submit(rows, n, s) for s in (seeds if PANELS[n].random else seeds[:1])] for n in names}
        for name, futures in runs.items():
            each = [future.result() for future in futures]
            for figure in each[0]:
                values = [one[figure] for one in each]
                print(figure, *(f"{value:.4g}" for value in values), flush=True)
                bar, sense = PANELS[name].bars.get(figure, (None, ">="))
                found.append(Row(figure, mean(values), "", bar, sense))
    return 0 if report("hard", found, chosen.short) else 1


def rows(name: str, seed: int) -> dict[str, float]:
    """The figures of one panel and seed."""
    return PANELS[name].rows(seed)


if __name__ == "__main__":
    sys.exit(main())
