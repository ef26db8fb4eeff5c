"""Condition Admitted: an estimate, from the scheduler's measurements, whether a pool can meet its models' objectives.

One stream of a model whose tokens take s seconds of an engine, and may take tbt, keeps s / tbt of an engine busy
(the paper's Equation 2 with every batch at its slowest). The sum over all models is compared with the engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, unknown, yes
from aegaeon_operator.reconcile.cluster.facts import UNKNOWN_MODEL, ModelFacts
from aegaeon_operator.spec.resources import ServedModel

_KIND = "Admitted"


@dataclass(frozen=True, slots=True)
class Demand:
    """Engines, to two digits, for one concurrent stream of each of `measured` models of all `served` ones.

    The estimate has no more digits, and each change is written to the statuses of thousands of ModelPools.
    """

    served: int = 0
    measured: int = 0
    engines: float = 0.0


def demand(models: Sequence[ServedModel], facts: Mapping[str, ModelFacts]) -> Demand:
    """Return the demand of all models of a pool."""
    measured = ((model, facts.get(model.name, UNKNOWN_MODEL).token_s) for model in models)
    shares = [token_s / model.slo.tbt for model, token_s in measured if token_s]
    return Demand(len(models), len(shares), float(f"{sum(shares):.2g}"))


def admitted(
    models: Sequence[ServedModel],
    demand: Demand,
    facts: Mapping[str, ModelFacts],
    engines: int,
    device_bytes: int | None,
) -> Condition:
    """Return the condition for a ModelPool's models, in a pool with this number of decoding engines."""
    for model in models:
        size = facts.get(model.name, UNKNOWN_MODEL).weight_bytes
        if device_bytes is not None and size > device_bytes:
            return no(
                _KIND,
                "ModelTooLarge",
                f"{model.name} has {size:,} bytes of weights per accelerator, more than memory.deviceBytes "
                f"({device_bytes:,}); raise memory.deviceBytes or accelerator.count",
            )
    if engines == 0:
        return no(_KIND, "NoEngines", "the pool has no engines; raise their replicas")
    if not demand.measured:
        return unknown(
            _KIND,
            "NotMeasured",
            f"{demand.served} models share {engines} engines; none has served enough tokens for an estimate",
        )
    text = (
        f"one concurrent stream of each of {demand.measured} measured models needs {demand.engines:g} engines to meet "
        f"the objectives; the pool has {engines}; {demand.served - demand.measured} models are not measured yet"
    )
    return yes(_KIND, "Feasible", text) if demand.engines <= engines else no(_KIND, "Overcommitted", text)
