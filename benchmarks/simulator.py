"""How fast the simulator is: events a second on one core, and a run of 300 s with 64 models.

CPU time of the thread: other processes do not count. Run: python -m benchmarks.simulator
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from benchmarks.report import Row, report

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, default_split
from aegaeon_simulator.workload import Lengths, poisson

LENGTHS = Path(__file__).parent / "data" / "sharegpt_pairs.csv"
EVENTS_PER_S = 20_000.0
RUN_S = 10.0
POLICIES = ("slack", "paper", "paper-artifact", "serverlessllm", "serverlessllm-fair")


def rows(policy: str) -> list[Row]:
    """One policy at 64 models, 0.1 requests per second each, 300 s."""
    workload = poisson(Lengths.read(LENGTHS), models=64, rate=0.1, duration_s=300.0, seed=0)
    run = Run(Settings(policy, default_split(policy), Slo(10.0, 0.1)), workload, read_device("h800-policy"))
    began = time.thread_time()
    outcome = simulate(run)
    seconds = time.thread_time() - began
    return [
        Row(f"{policy}: events per second on one core", outcome.events / seconds, "events/s", EVENTS_PER_S, ">="),
        Row(f"{policy}: 300 s of 64 models", seconds, "s", RUN_S, "<="),
    ]


def main() -> int:
    """The production policies and the busiest baselines."""
    return 0 if report("simulator", [row for policy in POLICIES for row in rows(policy)]) else 1


if __name__ == "__main__":
    sys.exit(main())
