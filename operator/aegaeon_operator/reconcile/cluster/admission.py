"""Whether a pool can meet its models' objectives: a first estimate from what the scheduler has measured.

One stream of a model whose tokens take s seconds of an engine, and may take tbt, keeps s / tbt of an engine busy
(the paper's Equation 2 with every batch at its slowest). What all models want at once is held against the engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aegaeon_operator.reconcile.cluster.conditions import Condition, no, unknown, yes
from aegaeon_operator.reconcile.cluster.facts import ModelFacts
from aegaeon_operator.spec.resources import ServedModel

_KIND = "Admitted"


@dataclass(frozen=True, slots=True)
class Demand:
    """What one stream of each of `measured` models, of all `served` ones, wants at once: engines, to two digits.

    They are no better known, and statuses of thousands of ModelPools follow each change.
    """

    served: int = 0
    measured: int = 0
    engines: float = 0.0


def demand(models: Sequence[ServedModel], facts: Mapping[str, ModelFacts]) -> Demand:
    """Of all models of a pool."""
    shares = [found.token_s / model.slo.tbt for model in models if (found := facts.get(model.name)) and found.token_s]
    return Demand(len(models), len(shares), float(f"{sum(shares):.2g}"))


def admitted(
    mine: Sequence[ServedModel],
    wanted: Demand,
    facts: Mapping[str, ModelFacts],
    engines: int,
    device_bytes: int | None,
) -> Condition:
    """The answer for the models of one ModelPool, in a pool of so many engines that decode."""
    for model in mine:
        size = facts.get(model.name, ModelFacts()).weight_bytes
        if device_bytes is not None and size > device_bytes:
            return no(
                _KIND,
                "ModelTooLarge",
                f"{model.name} has {size:,} bytes of weights on each accelerator of an engine, which has "
                f"{device_bytes:,} there; raise memory.deviceBytes, or accelerator.count",
            )
    if engines == 0:
        return no(_KIND, "NoEngines", "the pool has no engines; raise their replicas")
    if not wanted.measured:
        return unknown(
            _KIND, "NotMeasured", f"{wanted.served} models share {engines} engines; none has served enough to tell"
        )
    text = (
        f"one stream of each of {wanted.measured} measured models at once wants {wanted.engines:g} engines at their "
        f"objectives; the pool has {engines}; {wanted.served - wanted.measured} models are not measured yet"
    )
    return yes(_KIND, "Feasible", text) if wanted.engines <= engines else no(_KIND, "Overcommitted", text)
