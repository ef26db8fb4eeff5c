"""How long `aegaeon plan` takes for 50 models of the paper's mix at 0.1 requests per second each.

CPU time of this process, every simulation in it: other processes do not count, and neither do further cores, on which
the command runs its windows of arrivals side by side. Run: python -m benchmarks.plan
"""

from __future__ import annotations

import sys
import time

from benchmarks.report import Row, report

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.plan import ModelDemand, Objective, PoolEvaluator, plan, poisson_traffic
from aegaeon_simulator.workload import Lengths
from aegaeon_simulator.workload.kinds import paper_kind

MODELS, RATE = 50, 0.1
PLAN_S = 60.0


def main() -> int:
    """The question of `aegaeon plan --models 50 --rate 0.1`."""
    models = [ModelDemand(f"model-{m:03}", paper_kind(m), RATE) for m in range(MODELS)]
    began = time.process_time()
    traffic = poisson_traffic(models, Lengths.packaged())
    found = plan(PoolEvaluator(traffic, read_device("h800-policy"), Objective(Slo(10.0, 0.1))))
    seconds = time.process_time() - began
    rows = [
        Row(f"plan: {MODELS} models", seconds, "s", PLAN_S, "<="),
        Row(f"plan: GPUs that suffice for {MODELS} models", found.best.gpus, "GPUs"),
    ]
    return 0 if report("plan", rows) else 1


if __name__ == "__main__":
    sys.exit(main())
