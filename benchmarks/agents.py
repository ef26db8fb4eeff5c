"""Agents whose prompts grow, on four GPUs: tokens of prompts computed over the least possible, and tokens on time.

A session sends its whole conversation with each request: the instructions that all sessions of its model have, its
task, and of each turn the answer and what a tool returned. It pauses between the end of an answer and the next request.
The least possible is what one prefix cache without limits for all engines leaves to compute.
Run: python -m benchmarks.agents [PANEL ...] [--seeds 1,2,3] [--policies slack,...]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
from benchmarks.drawn import head, seeds
from benchmarks.goodput import PROCESSES
from benchmarks.loads import DRAIN_S, GPUS, SLO, device
from benchmarks.report import Row, read_settings, report

from aegaeon_simulator.parallel import processes
from aegaeon_simulator.results.report import prompt_tokens
from aegaeon_simulator.results.shares import quantiles
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival
from aegaeon_simulator.workload.kinds import QWEN_7B, YI_9B
from aegaeon_simulator.workload.model import in_order

MOST_COMPUTED = 1.1  # tokens of prompts, of the least possible
POLICIES = ("slack", "paper", "prism")
INSTRUCTIONS, TURNS, BEGIN_S = 3000, 12, 60.0
RATIO = "prompt tokens computed / least possible"
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Panel:
    """So many models, of 7B and 9B in turn, with sessions that begin within the first minute."""

    models: int
    sessions: int  # of each model


PANELS = {
    "16 models, 64 agents": Panel(16, 4),
    "24 models, 96 agents": Panel(24, 4),
    "8 models, 96 agents": Panel(8, 12),
    "2 models, 160 agents": Panel(2, 80),
}


def requests(panel: Panel, seed: int) -> list[Arrival]:
    """All requests; those of a session follow one another after pauses of some seconds."""
    random = np.random.default_rng([seed, 5])
    made: list[Arrival] = []
    for model in range(panel.models):
        for number in range(panel.sessions):
            length = INSTRUCTIONS + int(random.integers(500, 3000))
            begin_s = float(random.uniform(0.0, BEGIN_S))
            for turn in range(TURNS):
                answer = int(random.lognormal(4.8, 0.8)) + 10
                pause_s = float(random.lognormal(1.2, 1.0)) if turn else 0.0
                session = f"{model}/{number}"
                made.append(
                    Arrival(begin_s, model, length, answer, "", session, pause_s=pause_s, shared_tokens=INSTRUCTIONS)
                )
                length += answer + int(random.lognormal(6.5, 0.8))
    return made


def figures(name: str, policy: str, seed: int) -> Figures:
    """One run."""
    panel = PANELS[name]
    kinds = tuple((QWEN_7B, YI_9B)[model % 2] for model in range(panel.models))
    settings = Settings(policy, Split(unified=GPUS), SLO, DRAIN_S)
    outcome = simulate(Run(settings, in_order(kinds, requests(panel, seed)), device(), seed))
    share, first_s = outcome.attainment(SLO), quantiles([r.times[0] for r in outcome.requests if r.times])
    return {
        RATIO: prompt_tokens(outcome)["computed_by_least"],
        "tokens on time": share.token,
        "requests answered whole": fmean(r.finished for r in outcome.requests),
        "TTFT p50, s": first_s["p50"] if first_s else 0.0,
        "TTFT p99, s": first_s["p99"] if first_s else 0.0,
    }


def rows(name: str, policy: str, means: Figures) -> list[Row]:
    """Figures of a panel and policy; the bar is for slack."""
    units = {RATIO: "ratio", "tokens on time": "share", "requests answered whole": "share"}
    bars = {RATIO: MOST_COMPUTED} if policy == "slack" else {}
    return [
        Row(f"{name}: {policy}: {figure}", value, units.get(figure, "s"), bars.get(figure), "<=")
        for figure, value in means.items()
    ]


def main() -> int:
    """Every panel, policy and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("panels", nargs="*", default=list(PANELS), metavar="PANEL")
    parser.add_argument("--seeds", dest="seed", default="", help="by default three of the commit's hash")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--jobs", type=int, default=PROCESSES)
    options = read_settings(parser)
    each = [int(seed) for seed in options.seed.split(",")] if options.seed else seeds(3, head())
    keys = [(name, policy) for name in options.panels for policy in options.policies.split(",")]
    lines = [Row("seed", float(seed), "") for seed in each]
    with processes(options.jobs) as pool:
        runs = {key: [pool.submit(partial(figures, *key), seed) for seed in each] for key in keys}
        for name, policy in keys:
            results = [future.result() for future in runs[name, policy]]
            print(name, policy, [round(result[RATIO], 3) for result in results], flush=True)
            lines += rows(name, policy, {figure: fmean(r[figure] for r in results) for figure in results[0]})
    return 0 if report("agents", lines, options.short) else 1


if __name__ == "__main__":
    sys.exit(main())
