"""Ablation of every rule and setting of policy slack: tokens on time without it, on loads at which policies differ.

Run: python -m benchmarks.ablation [VARIANT ...] [--seeds 1,2] [--loads 0.1,zipf] [--kept FILE]. A setting is made
neutral with the compiled core; where no setting ends a rule, functions of the interpreted core stand in for its own,
which decides the same. `--kept`: JSON lines of finished runs, which are not run again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.ablation_rules import FULL, VARIANTS, Variant, instead
from benchmarks.drawn import head, seeds
from benchmarks.kept_runs import Key, run_all
from benchmarks.loads import LOADS
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.config import SlackSettings
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.run import simulate

NOISE = "the same on a network that is 2 % slower"
_DELAY_S = 0.00051
Shares = dict[str, float]
"""of tokens on time: of all, and of each part of the load"""


def shares(variant: str, load: str, seed: int) -> Shares:
    """Attainment of a run without a rule or setting."""
    case = LOADS[load](seed)
    of = VARIANTS.get(variant, Variant(""))
    settings = replace(case.run.settings, tuned=SlackSettings(**of.settings))
    if variant == NOISE:
        settings = replace(settings, delay_s=_DELAY_S)
    with instead(of.patches() if of.patches is not None else []):
        outcome = simulate(replace(case.run, settings=settings))
    parts = {"all": outcome.requests} | {
        name: [r for r in outcome.requests if chooses(r)] for name, chooses in case.parts.items()
    }
    return {
        name: attainment(
            (r.times, replace(settings.slo_of(r.model), ttft_s=settings.slo_of(r.model).ttft_s + r.defer_s), r.length)
            for r in these
        ).token
        for name, these in parts.items()
    }


def runs_of(variants: Iterable[str], loads: Iterable[str], each: Iterable[int]) -> list[Key]:
    """Runs of these variants, first seed first."""
    loads = list(loads)
    of = {v: VARIANTS[v].loads if v in VARIANTS else VARIANTS[FULL].loads for v in variants}
    return [(v, load, seed) for seed in each for v in of for load in of[v] if load in loads]


@contextmanager
def core(kind: str, count: int) -> Iterator[ProcessPoolExecutor]:
    """So many processes with this core, `compiled` or `interpreted`."""
    before = os.environ.get("AEGAEON_CORE")
    os.environ["AEGAEON_CORE"] = kind
    with processes(count) as pool:
        list(pool.map(_started, range(count)))  # with this variable
        if before is None:
            del os.environ["AEGAEON_CORE"]
        else:
            os.environ["AEGAEON_CORE"] = before
        yield pool


def _started(_: int) -> None:
    time.sleep(0.5)  # so that no process takes two of these


def run_on_cores(keys: list[Key], kept: Path | None) -> dict[Key, Shares]:
    """Both cores side by side."""
    with core("compiled", 2) as compiled, core("interpreted", 1) as interpreted:

        def submit(key: Key) -> Future[Shares]:
            patched = key[0] in VARIANTS and VARIANTS[key[0]].patches is not None
            return (interpreted if patched else compiled).submit(shares, *key)

        return run_all(keys, kept, submit)


def effects(measured: dict[Key, Shares]) -> dict[str, dict[str, Shares]]:
    """Points of tokens on time that each variant has more than the full policy: by variant, load and part; means."""
    points: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for (variant, load, seed), of in measured.items():
        full = measured.get((FULL, load, seed))
        if full is not None and variant != FULL:
            for part, share in of.items():
                points[variant][load][part].append(100.0 * (share - full[part]))
    return {
        v: {load: {p: fmean(x) for p, x in parts.items()} for load, parts in ls.items()} for v, ls in points.items()
    }


def main() -> int:
    """Every variant on its loads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "variants", nargs="*", default=[FULL, NOISE, *(v for v in VARIANTS if v != FULL and VARIANTS[v].loads)]
    )
    parser.add_argument("--loads", default=",".join(LOADS))
    parser.add_argument("--seeds", default="", help="by default two of the commit's hash")
    parser.add_argument("--kept", type=Path)
    chosen = read_settings(parser)
    if scenes := [v for v in chosen.variants if v in VARIANTS and not VARIANTS[v].loads]:
        parser.error(f"no load of benchmarks.loads shows them, tests/scheduler_core/test_rules.py does: {scenes}")
    each = [int(seed) for seed in chosen.seeds.split(",")] if chosen.seeds else seeds(2, head())
    measured = run_on_cores(runs_of(chosen.variants, chosen.loads.split(","), each), chosen.kept)
    rows = [Row("seeds", float(seed), "") for seed in each]
    for variant, loads in effects(measured).items():
        rows += [Row(f"{variant}: {load}: all tokens", parts["all"], "points") for load, parts in loads.items()]
    return 0 if report("ablation", rows, chosen.short) else 1


if __name__ == "__main__":
    sys.exit(main())
