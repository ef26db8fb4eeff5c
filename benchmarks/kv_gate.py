"""A GpuPool's `kvGate`: tokens on time, refusals and KV that is moved, with gates of several shares and without one.

Loads of benchmarks.loads, four GPUs (`memory`: of 34 GB), policy slack; each load with and without a gate on the same
seeds. Run: python -m benchmarks.kv_gate [LOAD ...] [--seeds 1,2]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from benchmarks.loads import LOADS
from benchmarks.report import Row, report

from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.run import simulate

GATES = (0.0, 0.95, 0.85, 0.7)
CHOSEN = ("memory", "long", "0.1", "0.5")


@dataclass(frozen=True, slots=True)
class Effect:
    """Share of tokens on time in a run, and requests refused."""

    token: float
    refused: int


def effect(load: str, gate: float, seed: int) -> Effect:
    """Effect of a gate on a load."""
    run = LOADS[load](seed).run
    run = replace(run, settings=replace(run.settings, kv_gate=gate))
    requests = simulate(run).requests
    served = ((r.times, run.settings.slo_of(r.model), r.length) for r in requests)
    return Effect(attainment(served).token, sum(r.refused for r in requests))


def rows(load: str, seeds: Sequence[int]) -> list[Row]:
    """Means over the seeds, of each gate and without one."""
    effects = {gate: [effect(load, gate, seed) for seed in seeds] for gate in GATES}
    table = []
    for gate, measured in effects.items():
        what = f"{load}, {f'gate of {gate:.0%}' if gate else 'no gate'}"
        table += [
            Row(f"{what}: tokens on time", fmean(e.token for e in measured), "share"),
            Row(f"{what}: requests refused", fmean(e.refused for e in measured), "requests"),
        ]
        print(what, [f"{e.token:.4f} ({e.refused})" for e in measured], flush=True)
    return table


def main() -> int:
    """Print and keep the figures of each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loads", nargs="*", default=CHOSEN, choices=[*LOADS, CHOSEN])
    parser.add_argument("--seeds", default="71,72,73")
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    table = [row for load in options.loads for row in rows(load, seeds)]
    return 0 if report("kv_gate", table, short=tuple(options.loads) != CHOSEN) else 1


if __name__ == "__main__":
    sys.exit(main())
