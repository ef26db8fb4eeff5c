"""Loads at which models, tenants or moments differ: policy slack beside every baseline at its best setting.

Four GPUs (eight for the catalog by Zipf, a single one for the flood), seeds drawn from the commit's hash, production's
hold. Settings of baselines are those that benchmarks.tuning has recorded, from a seed that is not reported.
Run: python -m benchmarks.panels [PANEL ...] [--seeds 1,2,3] [--policies slack,...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np
from benchmarks.drawn import head, seeds
from benchmarks.goodput import PROCESSES
from benchmarks.kept_runs import Figures, run_all
from benchmarks.loads import (
    Load,
    embeddings,
    first_uses,
    flood,
    groups_that_wake,
    modest_tenants,
    objectives,
    tiered_tenants,
    zipf,
)
from benchmarks.report import Row, read_settings, report
from benchmarks.tuned import best

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.results.outcome import Served
from aegaeon_simulator.results.shares import worst_decile
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import PRODUCTION

BASELINES = ("paper", "prism", "serverlessllm-fair", "prewarm", "vllm-sleep")
"""those that share GPUs among more models than fit. `paper-artifact` is `paper` with the artifact's deviations;
`serverlessllm` and `serverlessllm-plus`, which bind a request to a GPU at once, had less than half of the tokens of
`serverlessllm-fair` on time where they were run (60/8 s)"""
ONCE = ("paper", "prewarm")
"""run on the first seed alone: `prewarm` is `serverlessllm-fair` within a point, `paper` behind but for embeddings"""
AHEAD = 0.5  # points by which a baseline may be better in tokens on time of all
Sense = Literal[">=", "<="]


@dataclass(frozen=True, slots=True)
class Panel:
    """`bars`: what slack is held to, by figure. `same`: baselines whose model has what the load is about."""

    load: Callable[[int], Load]
    bars: Mapping[str, tuple[float, Sense]] = field(default_factory=dict)
    baselines: tuple[str, ...] = BASELINES


SHARE: Sense = ">="
MOST: Sense = "<="
PANELS = {
    "60/8 s": Panel(
        partial(objectives, 56, Slo(60.0, 0.1), Slo(8.0, 0.1), seconds=80.0),
        {"loose": (0.97, SHARE), "strict": (0.97, SHARE)},
    ),
    "30/2 s, TBT 200/50 ms": Panel(
        partial(objectives, 44, Slo(30.0, 0.2), Slo(2.0, 0.05), seconds=80.0),
        {"loose": (0.97, SHARE), "strict": (0.92, SHARE)},
    ),
    "zipf": Panel(partial(zipf, models=300, rate=9.0, gpus=8), {"worst decile of models": (0.8, SHARE)}),
    "flood of 24/s": Panel(partial(flood, 24.0), {"small": (0.9, SHARE)}),
    "flood of 36/s": Panel(  # paper: behind all others at 24/s, and no run of it ended in half an hour
        partial(flood, 36.0), {"small": (0.9, SHARE)}, tuple(name for name in BASELINES if name != "paper")
    ),
    "tenants, none greedy": Panel(modest_tenants),
    "interactive beside batch": Panel(tiered_tenants, {"interactive": (0.98, SHARE)}, ()),
    "embeddings": Panel(partial(embeddings, rate=480.0, seconds=15.0), {"latest text, TTFTs": (2.0, MOST)}),
    "captures of 2 s": Panel(partial(first_uses, seconds=200.0), {"first 100 s": (0.7, SHARE)}, ("paper", "prism")),
    "teams": Panel(groups_that_wake),
}


def run_of(load: Load, policy: str, panel: str) -> Run:
    """The load's run under another policy, at its best setting; none but production's core knows embedders."""
    settings = best(policy, panel, replace(load.run.settings, policy=policy))
    if policy in PRODUCTION:
        return replace(load.run, settings=settings)
    gpu = load.run.device
    generates = {name: replace(kind, task="") for name, kind in gpu.kinds.items()}
    return replace(load.run, settings=settings, device=replace(gpu, kinds=generates))


def figures(panel: str, policy: str, seed: int) -> Figures:
    """Shares of tokens on time of a run, and seconds."""
    load = PANELS[panel].load(seed)
    return measured(load, run_of(load, policy, panel))


def measured(load: Load, run: Run) -> Figures:
    """Shares of tokens on time of all, of each part and of the models that are served worst; end-to-end seconds."""
    requests, slo_of = simulate(run).requests, run.settings.slo_of

    def share(these: Sequence[Served]) -> float:
        return attainment((r.times, r.due(slo_of(r.model)), r.length) for r in these).token

    worst = worst_decile(requests, slo_of)
    ended = sorted(r.times[-1] for r in requests if r.finished and r.times)
    result = {"all": share(requests), "worst decile of models": worst["attainment"]["token"] if worst else 0.0}
    result |= {name: share([r for r in requests if chooses(r)]) for name, chooses in load.parts.items()}
    result |= {f"end to end, {name}, s": float(np.quantile(ended, q)) for name, q in (("p50", 0.5), ("p99", 0.99))}
    if "texts" in load.parts:
        result |= _texts([r for r in requests if load.parts["texts"](r)], run)
    return result


def _texts(texts: Sequence[Served], run: Run) -> Figures:
    """Texts a second and engine while they come, and how late the last of those is, in TTFTs."""
    seconds = max(r.arrival_s for r in texts)
    computed = sum(bool(r.times) and r.arrival_s + r.times[0] <= seconds for r in texts)
    waits = [r.times[0] if r.times else seconds for r in texts]
    return {
        "texts/s of an engine": computed / seconds / run.settings.split.total,
        "latest text, TTFTs": max(waits) / run.settings.slo_of(texts[0].model).ttft_s,
    }


def rows(panel: str, means: Mapping[str, Figures]) -> list[Row]:
    """Figures of a panel: slack's beside their bars, those of baselines, and the least lead over these."""
    lines: list[Row] = []
    for policy, of in means.items():
        for name, value in of.items():
            limit, sense = _bar(panel, policy, name)
            lines.append(Row(f"{panel}: {policy}: {name}", value, _unit(name), limit, sense))
    rivals = {policy: of["all"] for policy, of in means.items() if policy != "slack"}
    if not rivals or "slack" not in means:
        return lines
    lead = 100.0 * (means["slack"]["all"] - max(rivals.values()))
    bar = 10.0 if panel == "teams" else -AHEAD
    return [*lines, Row(f"{panel}: slack less the best baseline", lead, "points", bar, SHARE)]


def _bar(panel: str, policy: str, figure: str) -> tuple[float | None, Sense]:
    """Limit of a figure, which is slack's alone."""
    return PANELS[panel].bars.get(figure, (None, SHARE)) if policy == "slack" else (None, SHARE)


def _unit(name: str) -> str:
    return "s" if name.endswith(", s") else "" if "text" in name and name != "texts" else "share"


def main() -> int:
    """Every panel, policy and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("panels", nargs="*", default=list(PANELS), metavar="PANEL")
    parser.add_argument("--seeds", dest="seed", default="", help="by default three of the commit's hash")
    parser.add_argument("--policies", default="", help="by default slack and the panel's baselines")
    parser.add_argument("--kept", type=Path, help="JSON lines of finished runs, which are not run again")
    parser.add_argument("--jobs", type=int, default=PROCESSES)
    options = read_settings(parser)
    each = [int(seed) for seed in options.seed.split(",")] if options.seed else seeds(3, head())
    chosen = options.policies.split(",") if options.policies else None
    policies = {panel: chosen or ["slack", *PANELS[panel].baselines] for panel in options.panels}
    keys = [
        (panel, policy, seed)
        for seed in each
        for panel in options.panels
        for policy in policies[panel]
        if policy not in ONCE or seed == each[0]
    ]
    with processes(options.jobs) as pool:
        measured = run_all(keys, options.kept, lambda key: pool.submit(figures, *key))
    lines = [Row("seed", float(seed), "") for seed in each]
    for panel in options.panels:
        of = {
            policy: [run for key, run in measured.items() if key[:2] == (panel, policy)] for policy in policies[panel]
        }
        means = {policy: {key: fmean(run[key] for run in runs) for key in runs[0]} for policy, runs in of.items()}
        lines += rows(panel, means)
    return 0 if report("panels", lines, options.short) else 1


if __name__ == "__main__":
    sys.exit(main())
