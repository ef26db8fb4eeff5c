"""The simulator held against the published runs of the paper's artifact: claim, published, ours.

Attainment in percent (time metric) at every published point, and the 90 % crossings. Run: python -m benchmarks.oracle
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

from benchmarks.report import Row, report

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.results.attainment_curve import crossing
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, default_split
from aegaeon_simulator.workload import read_trace

DATA = Path(__file__).parent / "data"
POLICIES = {"aegaeon": "paper-artifact", "serverlessllm": "serverlessllm", "serverlessllm_plus": "serverlessllm-plus"}
WITHIN_POINTS = 2.0
WITHIN_MODELS = 2.0
SLO = Slo(10.0, 0.1)


@cache
def attained(policy: str, rate: str, models: int) -> float:
    """Percent on time in the artifact's metric."""
    trace = read_trace(DATA / f"ae_synth_80models_{rate.replace('rps_', 'rps')}.csv").first_models(models)
    run = Run(Settings(policy, default_split(policy), SLO), trace, read_device("artifact"))
    return 100.0 * simulate(run).attainment(SLO).time


def point(system: str, rate: str, models: int, published: float) -> Row:
    """One published point, as the distance from it."""
    ours = attained(POLICIES[system], rate, models)
    figure = f"{rate} {system} {models} models: published {published:g} %, ours {ours:.1f} %, apart"
    return Row(figure, abs(ours - published), "points", WITHIN_POINTS, "<=")


def crossed(system: str, rate: str, published: float) -> Row:
    """One crossing, swept by twos around it."""
    around = range(2 * round((published - 7) / 2), round(published) + 10, 2)
    ours = crossing([(m, attained(POLICIES[system], rate, m) / 100.0) for m in around])
    apart = float("inf") if ours is None else abs(ours - published)
    measured = "none" if ours is None else f"{ours:.1f}"
    figure = f"{rate} {system} 90 % crossing: published {published:g}, ours {measured}, apart"
    return Row(figure, apart, "models", WITHIN_MODELS, "<=")


def main() -> int:
    """Every published point and crossing."""
    oracle = json.loads((DATA / "artifact_oracle.json").read_text("utf-8"))
    rows = [
        point(system, rate, models, published)
        for rate in ("rps_0.1", "rps_0.5")
        for system in ("aegaeon", "serverlessllm")
        for models, published in zip(oracle[rate]["models"], oracle[rate][system], strict=True)
        if published is not None
    ]
    for rate, systems in oracle["crossing_90_percent"].items():
        rows += [crossed(system, rate, published) for system, published in systems.items()]
    return 0 if report("oracle", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
