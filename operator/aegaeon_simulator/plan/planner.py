"""Answers one planning question by simulation: how many GPUs, which split, what attainment, what it saves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_simulator.plan.demand import Traffic
from aegaeon_simulator.plan.errors import PlanError
from aegaeon_simulator.plan.evaluate import Point, PoolEvaluator
from aegaeon_simulator.plan.price import ModelCost, by_tenant, cost_per_million, model_costs
from aegaeon_simulator.plan.search import fewest
from aegaeon_simulator.plan.static import Static, static_serving
from aegaeon_simulator.settings import PRODUCTION, Split

MOST_GPUS = 4096
_PREFILL_SHARES = (1 / 8, 1 / 4, 3 / 8)


@dataclass(frozen=True, slots=True)
class Plan:
    """`best` meets the objective with the fewest GPUs (or is the pool that was given); `splits` are those of as many
    GPUs; `curve` is attainment against GPUs without roles. `tokens_per_s`: output that is asked for."""

    best: Point
    meets: bool
    splits: tuple[Point, ...]
    curve: tuple[Point, ...]
    static: Static
    costs: tuple[ModelCost, ...]
    tokens_per_s: float

    @property
    def tenants(self) -> dict[str, float]:
        """GPU-hours a day of every tenant."""
        return by_tenant(self.costs)

    def per_million(self, gpus: int, price: float) -> float:
        """Price of a million output tokens on so many GPUs."""
        return cost_per_million(gpus, price, self.tokens_per_s)


def plan(evaluator: PoolEvaluator, policy: str = "slack", gpus: int | None = None) -> Plan:
    """Search the fewest GPUs, or look at a pool of `gpus`. Raises PlanError when no pool is large enough."""
    if policy not in PRODUCTION:
        raise PlanError(f"--policy {policy} cannot be planned for; pools run {' or '.join(PRODUCTION)}")
    if gpus is not None and gpus < 1:
        raise PlanError(f"{gpus} GPUs serve no request; give at least 1, or leave the number out to have it found")
    best = _fewest(evaluator, policy) if gpus is None else evaluator.point(policy, Split(unified=gpus))
    splits = _splits(evaluator, policy, best.gpus)
    better = max(splits, key=lambda p: p.share.low, default=None)
    while gpus is None and better is not None and evaluator.suffices(better) and better.share.low > best.share.low:
        fewer = _shrunk(better.split)
        if fewer is None or not evaluator.suffices(smaller := evaluator.point(policy, fewer)):
            break
        best = better = smaller
    if gpus is None and best.gpus > 1:
        evaluator.point(policy, Split(unified=best.gpus - 1))
    evaluator.point(policy, Split(unified=best.gpus + 1))
    costs = model_costs(evaluator.traffic.models, best.models, best.busy_s, best.gpus)
    return Plan(
        best,
        evaluator.suffices(best),
        tuple(splits),
        tuple(evaluator.points(policy)),
        static_serving(evaluator),
        tuple(costs),
        tokens_asked(evaluator.traffic),
    )


def _fewest(evaluator: PoolEvaluator, policy: str) -> Point:
    def suffice(gpus: int) -> bool:
        return evaluator.suffices(evaluator.point(policy, Split(unified=gpus)))

    gpus = fewest(suffice, 1, MOST_GPUS, first_guess(evaluator))
    if gpus is None:
        raise PlanError(f"not even {MOST_GPUS} GPUs meet the objective; relax --slo-ttft, --slo-tbt or --attainment")
    return evaluator.point(policy, Split(unified=gpus))


def first_guess(evaluator: PoolEvaluator) -> int:
    """The number to begin with: models expected to be active (Theorem 3.1), each at its slowest pace of one step per
    TBT."""
    output, gpus = mean_output(evaluator.traffic), 0.0
    for model in evaluator.traffic.models:
        tbt_s = (model.slo or evaluator.objective.slo).tbt_s
        latency = evaluator.device.kind(model.kind).latency
        open_requests = model.rate * (model.output_tokens or output) * tbt_s
        gpus += (1 - math.exp(-open_requests)) * latency.a / tbt_s + open_requests * latency.c / tbt_s
    return max(1, math.ceil(gpus))


def _splits(evaluator: PoolEvaluator, policy: str, gpus: int) -> list[Point]:
    """Pools with roles and the same number of GPUs."""
    counts = sorted({max(1, round(share * gpus)) for share in _PREFILL_SHARES}) if gpus > 1 else []
    return [evaluator.point(policy, Split(prefill=n, decode=gpus - n)) for n in counts if n < gpus]


def _shrunk(split: Split) -> Split | None:
    """One decode GPU less."""
    return Split(prefill=split.prefill, decode=split.decode - 1) if split.decode > 1 else None


def mean_output(traffic: Traffic) -> float:
    """Mean output tokens of a request, in the first draw."""
    lengths: Sequence[int] = [a.output_tokens for a in traffic.draw(0).arrivals]
    return sum(lengths) / len(lengths) if lengths else 1.0


def tokens_asked(traffic: Traffic) -> float:
    """The demand in output tokens per second."""
    return sum(m.rate for m in traffic.models) * mean_output(traffic)
