"""The cost of a pool and of each model: arithmetic over GPUs, tokens and each model's share of the GPU-seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_simulator.plan.demand import ModelDemand

HOURS_A_DAY = 24.0


@dataclass(frozen=True, slots=True)
class ModelCost:
    """One model in the pool. `break_even_rate`: requests per second at which its share would be a GPU of its own."""

    model: ModelDemand
    attainment: float | None
    gpus: float
    gpu_hours_a_day: float
    break_even_rate: float | None


def model_costs(
    models: Sequence[ModelDemand], attained: Sequence[float | None], busy_s: Sequence[float], gpus: int
) -> list[ModelCost]:
    """The pool's GPUs divided by what each model kept busy; idle time and switches go the same way.

    The break-even is in proportion: larger batches at higher rates make the true one higher.
    """
    total = sum(busy_s)
    costs = []
    for model, share, busy in zip(models, attained, busy_s, strict=True):
        part = gpus * busy / total if total else 0.0
        costs.append(ModelCost(model, share, part, part * HOURS_A_DAY, model.rate / part if part else None))
    return costs


def by_tenant(costs: Sequence[ModelCost]) -> dict[str, float]:
    """GPU-hours a day of every tenant; models without one are under the empty name."""
    hours: defaultdict[str, float] = defaultdict(float)
    for cost in costs:
        hours[cost.model.tenant] += cost.gpu_hours_a_day
    return dict(sorted(hours.items()))


def cost_per_million(gpus: float, price_per_gpu_hour: float, tokens_per_s: float) -> float:
    """Price of a million output tokens."""
    return gpus * price_per_gpu_hour / (tokens_per_s * 3600 / 1e6)


def saving(before: float, after: float) -> float:
    """Share of the GPUs that are no longer needed."""
    return 1 - after / before
