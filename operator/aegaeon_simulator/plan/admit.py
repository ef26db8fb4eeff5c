"""Can this pool admit that model at that objective? A pure function over the same simulations as the planner's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_simulator.devices import Device
from aegaeon_simulator.plan.demand import ModelDemand, poisson_traffic
from aegaeon_simulator.plan.evaluate import Objective, Point, PoolEvaluator, Trials, in_words, one_by_one
from aegaeon_simulator.settings import Split
from aegaeon_simulator.workload import Lengths

_MOST_MORE = 8


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that runs: devices by role, what they are, and the policy."""

    split: Split
    device: Device
    policy: str = "slack"


@dataclass(frozen=True, slots=True)
class Answer:
    """`attainment` with the candidate (its lower bound is `low`), `candidate` its own, `before` without it (None: the
    pool is empty). `more_gpus` would be needed to admit it; None when it is admitted, or not within reach."""

    admit: bool
    reason: str
    attainment: float
    low: float
    candidate: float | None
    before: float | None
    busy_share: float
    more_gpus: int | None


def can_admit(
    pool: Pool,
    models: Sequence[ModelDemand],
    candidate: ModelDemand,
    objective: Objective,
    lengths: Lengths,
    *,
    seeds: int = 2,
    window_s: float | None = None,
    trials: Trials = one_by_one,
) -> Answer:
    """Simulate the pool with and without the candidate, on the same arrivals. Raises PlanError, DeviceError and
    SettingsError."""
    traffic = poisson_traffic([*models, candidate], lengths, window_s)
    evaluator = PoolEvaluator(traffic, pool.device, objective, seeds, trials)
    after = evaluator.point(pool.policy, pool.split)
    before = None
    if models:
        known = poisson_traffic(models, lengths, traffic.window_s)
        before = PoolEvaluator(known, pool.device, objective, seeds, trials).point(pool.policy, pool.split)
    admit = _meets(evaluator, after)
    more = None if admit else _more(evaluator, pool)
    reason = _reason(pool, candidate, objective, before, after, admit, more)
    share = None if before is None else before.share.mean
    return Answer(admit, reason, after.share.mean, after.share.low, after.models[-1], share, after.busy_share, more)


def _meets(evaluator: PoolEvaluator, point: Point) -> bool:
    """The pool as a whole with confidence, and the candidate itself."""
    own = point.models[-1]
    return evaluator.suffices(point) and (own is None or own >= evaluator.objective.share)


def _more(evaluator: PoolEvaluator, pool: Pool) -> int | None:
    return next(
        (n for n in range(1, _MOST_MORE + 1) if _meets(evaluator, evaluator.point(pool.policy, _grown(pool, n)))), None
    )


def _grown(pool: Pool, more: int) -> Split:
    split = pool.split
    if split.unified:
        return Split(split.prefill, split.decode, split.unified + more)
    return Split(split.prefill, split.decode + more)


def _reason(
    pool: Pool,
    candidate: ModelDemand,
    objective: Objective,
    before: Point | None,
    after: Point,
    admit: bool,
    more: int | None,
) -> str:
    was = "" if before is None else f", from {100 * before.share.mean:.1f} %"
    share = (
        f"with {candidate.name} {100 * after.share.mean:.1f} % are on time{was} "
        f"(at least {100 * after.share.low:.1f} % at {100 * objective.confidence:g} % confidence, "
        f"asked {100 * objective.share:g} %)"
    )
    if admit:
        return f"{in_words(pool.split)} can take it: {share}"
    if more is None:
        return f"{in_words(pool.split)} cannot take it: {share}; {_MOST_MORE} GPUs more do not change that"
    return f"{in_words(pool.split)} cannot take it: {share}; {more} more GPU{'s' * (more > 1)} would do"
