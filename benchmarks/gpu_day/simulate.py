"""Stage `simulate`: the trace that the pool served, predicted by the simulator with the device file of this machine."""

from __future__ import annotations

import sys

from benchmarks.gpu_day.answers import Answers, read_answers
from benchmarks.gpu_day.manifests import POLICIES
from benchmarks.gpu_day.pool import DELAY_S
from benchmarks.gpu_day.stage import begin, parser_of, status
from benchmarks.report import Row
from benchmarks.truth import Machine, simulated, through_the_stack
from benchmarks.truth_cases import Case

from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.devices import read_device

POINTS = 3.0  # attainment, simulated and real, may be apart


def main() -> int:
    where, figures = begin("simulate", parser_of(__doc__).parse_args())
    missing = [file for file in (where.constants, where.replies("pool")) if not file.exists()]
    if missing:
        print(f"missing: {', '.join(file.name for file in missing)}")
        return 1
    device, answers = read_device(str(where.constants)), read_answers(where.replies("pool"))
    policy, real = POLICIES[answers.roles], 100 * _attained(answers)
    figures.add(Row("tokens on time, real", real, "%"), Row("switches, real", answers.switches, "switches"))
    for name, machine in (
        ("calibrate alone", Machine(device, 0.0)),
        ("and each model alone in the pool", through_the_stack(device, answers.alone)),
    ):
        found = simulated(machine, answers.workload, Case(policy), answers.slo, DELAY_S)
        token = 100 * found.attained.token
        figures.add(
            Row(f"tokens on time, simulated: {name}", token, "%"),
            Row(f"switches, simulated: {name}", found.switches, "switches"),
            Row(f"simulated and real apart: {name}", abs(token - real), "points", POINTS, "<="),
        )
    return status(figures, where.small)


def _attained(answers: Answers) -> float:
    """Share of tokens that clients had in time."""
    both = zip(answers.replies, answers.workload.arrivals, strict=True)
    return attainment((reply.times, answers.slo, arrival.output_tokens) for reply, arrival in both).token


if __name__ == "__main__":
    sys.exit(main())
