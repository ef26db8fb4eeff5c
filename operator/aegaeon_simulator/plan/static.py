"""GPUs for serving without a pool: one GPU (or several) for each model, and at most two models on a GPU.

A model that overloads one GPU gets replicas, which receive its requests round-robin.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from aegaeon_simulator.plan.evaluate import PoolEvaluator, Reshape
from aegaeon_simulator.plan.search import fewest
from aegaeon_simulator.settings import Split
from aegaeon_simulator.workload import Workload

_MOST_COPIES = 64


@dataclass(frozen=True, slots=True)
class Static:
    """GPUs for dedicated and for muxserve-like serving; None: not even `copies` of every model's GPUs suffice."""

    dedicated: int | None
    muxserve: int | None
    copies: tuple[int, ...]


def with_copies(workload: Workload, copies: tuple[int, ...]) -> Workload:
    """Every model so many times; its requests go to its copies in turn. Copies of one model stand side by side.

    These baselines are modelled without sessions: every request is sent at its time.
    """
    first = [sum(copies[:m]) for m in range(len(copies))]
    turn: defaultdict[int, int] = defaultdict(int)
    arrivals = []
    for a in workload.arrivals:
        arrivals.append(replace(a, model=first[a.model] + turn[a.model] % copies[a.model], session=""))
        turn[a.model] += 1
    kinds = tuple(kind for kind, count in zip(workload.kinds, copies, strict=True) for _ in range(count))
    return Workload(kinds, tuple(arrivals))


def static_serving(evaluator: PoolEvaluator) -> Static:
    """GPUs that both need for the same objective, every model by itself where it is dedicated."""
    copies = (1,) * len(evaluator.traffic.models)
    while (short := _short(evaluator, copies)) and max(copies) < _MOST_COPIES:
        copies = tuple(c + max(1, c // 2) if m in short else c for m, c in enumerate(copies))
    if short:
        return Static(None, None, copies)
    return Static(sum(copies), _muxserve(evaluator, copies), copies)


def _short(evaluator: PoolEvaluator, copies: tuple[int, ...]) -> set[int]:
    """Models whose own GPUs do not meet the objective."""
    point = evaluator.point("dedicated", Split(unified=sum(copies)), _reshape(copies), copies)
    shares: list[float] = []
    at = 0
    for count in copies:
        known = [s for s in point.models[at : at + count] if s is not None]
        shares.append(sum(known) / len(known) if known else 1.0)
        at += count
    return {m for m, share in enumerate(shares) if share < evaluator.objective.share}


def _muxserve(evaluator: PoolEvaluator, copies: tuple[int, ...]) -> int | None:
    total = sum(copies)

    def suffice(gpus: int) -> bool:
        return evaluator.suffices(evaluator.point("muxserve", Split(unified=gpus), _reshape(copies), copies))

    return fewest(suffice, -(-total // 2), total, -(-total // 2))


def _reshape(copies: tuple[int, ...]) -> Reshape:
    return lambda workload: with_copies(workload, copies)
