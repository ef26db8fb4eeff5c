"""Policy slack where the first steps of a model on an engine take seconds: few engines are visited, and those that run
it again are preferred."""

from __future__ import annotations

from dataclasses import replace

from simulator.runs import arrivals, plain_device, run

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.settings import Split
from aegaeon_simulator.workload import Lengths, Workload, poisson
from aegaeon_simulator.workload.kinds import paper_kind

FIRST_S = 2.0


def visits(outcome: Outcome) -> int:
    """Pairs of a model and an engine whose first steps were run."""
    return round(sum(used.first_s for used in outcome.usage) / FIRST_S)


def test_a_model_comes_back_to_the_engine_that_ran_it_where_others_would_cost_first_steps() -> None:
    models = 36
    drawn = poisson(Lengths.packaged(), models=models, rate=0.1, duration_s=30.0, seed=3)
    workload = replace(drawn, kinds=tuple(paper_kind(m) for m in range(models)))
    device = replace(read_device("h800-policy"), first_s=FIRST_S)
    outcome = run("slack", workload, device, split=Split(unified=3))
    assert visits(outcome) <= 1.1 * models  # where they cost nothing, 1.8


def test_a_model_that_needs_a_second_engine_has_one() -> None:
    device = replace(plain_device(step_s=0.05, prefill_s=0.6), first_s=FIRST_S)
    workload = Workload(("plain",), tuple(arrivals([0.5 * n for n in range(40)], length=40)))
    outcome = run("slack", workload, device, split=Split(unified=2), slo=Slo(4.0, 0.1))
    assert visits(outcome) == 2
    assert all(used.decode_s > 1.0 for used in outcome.usage)


def test_an_engine_with_room_that_ran_the_model_is_preferred_to_an_idle_one() -> None:
    device = replace(plain_device(step_s=0.01, prefill_s=0.05), first_s=FIRST_S)
    stream, short = arrivals([3.0], length=1000), arrivals([0.0, 8.0], length=20, model=1)
    workload = Workload(("plain",) * 2, tuple(sorted([*stream, *short], key=lambda a: a.t_s)))
    outcome = run("slack", workload, device, split=Split(unified=2))
    assert outcome.requests[-1].times[0] < 1.0
