"""The operator's estimate whether a pool can take its models, held against the simulator that it stands in for.

The pools are those that the estimate is made for: models asked so seldom that each has about one stream at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aegaeon_operator.reconcile.cluster.admission import admitted, demand
from aegaeon_operator.reconcile.cluster.conditions import Condition
from aegaeon_operator.reconcile.cluster.facts import ModelFacts
from aegaeon_operator.spec.model_pool import ServedModel
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.plan import ModelDemand, Objective, PoolEvaluator, poisson_traffic
from aegaeon_simulator.plan.measure import busy_seconds
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths

LENGTHS = Lengths(((200, 60), (600, 150), (100, 30)))
DEVICE = read_device("h800-policy")
KINDS = ("qwen2_5_7b", "yi1_5_9b_chat", "llama2_13b")
RATE, WINDOW_S = 0.1, 60.0


def demands(count: int) -> list[ModelDemand]:
    return [ModelDemand(f"m{i}", KINDS[i % 3], RATE) for i in range(count)]


def measured(models: list[ModelDemand], gpus: int, slo: Slo) -> Mapping[str, ModelFacts]:
    """What the scheduler of the pool would have counted after the window."""
    workload = poisson_traffic(models, LENGTHS, WINDOW_S).draw(0)
    outcome = simulate(Run(Settings("slack", Split(unified=gpus), slo, drain_s=10.0), workload, DEVICE))
    busy = busy_seconds(outcome, [a.input_tokens for a in workload.arrivals], workload.kinds, DEVICE)
    tokens = [sum(len(r.times) for r in outcome.requests if r.model == m) for m in range(len(models))]
    sizes = [DEVICE.kind(model.kind).weight_bytes for model in models]
    facts = zip(tokens, busy, sizes, strict=True)
    return {
        model.name: ModelFacts(output_tokens=output, busy_s=busy_s, token_s=busy_s / max(output, 1), weight_bytes=size)
        for model, (output, busy_s, size) in zip(models, facts, strict=True)
    }


def estimate(models: list[ModelDemand], gpus: int, slo: Slo) -> Condition:
    objective = {"ttft": f"{1000 * slo.ttft_s:.0f}ms", "tbt": f"{1000 * slo.tbt_s:.0f}ms"}
    served = [
        ServedModel.model_validate({"name": m.name, "source": {"hostPath": m.name}, "slo": objective}) for m in models
    ]
    facts = measured(models, gpus, slo)
    return admitted(served, demand(served, facts), facts, gpus, DEVICE.model_bytes)


@pytest.mark.parametrize(
    ("count", "gpus", "scale", "serves", "estimated"),
    [
        (3, 1, 1.0, True, True),
        (4, 2, 0.25, True, True),
        (12, 1, 1.0, True, False),  # cautious: not all have a stream at once
        (24, 1, 1.0, False, False),
        (12, 1, 0.25, False, False),
    ],
)
def test_the_estimate_never_takes_what_the_simulator_clearly_cannot_serve(
    count: int, gpus: int, scale: float, serves: bool, estimated: bool
) -> None:
    models, objective = demands(count), Objective(Slo(10.0 * scale, 0.1 * scale))
    evaluator = PoolEvaluator(poisson_traffic(models, LENGTHS, WINDOW_S), DEVICE, objective, seeds=1)
    share = evaluator.point("slack", Split(unified=gpus)).share
    assert (share.low >= objective.share) == serves
    assert (share.high < objective.share) == (not serves)
    assert estimate(models, gpus, objective.slo).status == str(estimated)
