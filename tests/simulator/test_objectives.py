"""A model that is promised less time or more than others is served within it where the work fits."""

from __future__ import annotations

from random import Random

from simulator.runs import arrivals, plain_device

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload.model import in_order

STRICT, LOOSE = Slo(4.0, 0.1), Slo(40.0, 0.1)
MODELS, RATE, SECONDS, TOKENS = 18, 0.1, 60.0, 150


def shares(outcome: Outcome) -> tuple[float, float]:
    """Of the tokens on time: of strict models, which are the even ones, and of loose ones."""
    strict, loose = (
        attainment((r.times, slo, r.length) for r in outcome.requests if r.model % 2 == odd).token
        for odd, slo in enumerate((STRICT, LOOSE))
    )
    return strict, loose


def test_a_looser_objective_is_not_served_worse() -> None:
    rng = Random(1)
    times = [rng.uniform(0.0, SECONDS) for _ in range(round(MODELS * RATE * SECONDS))]
    requests = [arrivals([at], TOKENS, rng.randrange(MODELS))[0] for at in times]
    workload = in_order(["plain"] * MODELS, requests)
    slos = tuple((STRICT, LOOSE)[model % 2] for model in range(MODELS))
    device = plain_device(step_s=0.01, prefill_s=0.05)
    run = Run(Settings("slack", Split(unified=1), STRICT, slos=slos), workload, device, 0)
    strict, loose = shares(simulate(run))
    assert min(strict, loose) > 0.99  # by due times alone 1.0 and 0.82
