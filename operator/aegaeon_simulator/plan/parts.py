"""Attainment of a pool's parts: a mean over all requests hides who is served worst."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.plan.measure import Sample
from aegaeon_simulator.results.shares import WORST_SHARE

_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Class:
    """Models that share an objective, and what share of theirs is on time; None without requests."""

    slo: Slo
    models: int
    attainment: float | None


@dataclass(frozen=True, slots=True)
class Parts:
    """Shares on time: by class, strictest first; by tenant; the mean of the tenth of the models with the least.
    `latency_s`: quantiles of the seconds from arrival to the end of an answer."""

    classes: tuple[Class, ...]
    tenants: Mapping[str, float | None]
    worst_decile: float | None
    latency_s: Mapping[str, float] | None


def parts_of(samples: Sequence[Sample], slos: Sequence[Slo]) -> Parts:
    """All windows taken together; `slos` are the objectives of the models."""
    models = [_sum(pairs) for pairs in zip(*(each.models for each in samples), strict=True)]
    classes: defaultdict[Slo, list[tuple[float, float]]] = defaultdict(list)
    for slo, pair in zip(slos, models, strict=True):
        classes[slo].append(pair)
    tenants = {name: None for each in samples for name in sorted(each.tenants)}
    return Parts(
        tuple(Class(slo, len(of), ratio(of)) for slo, of in sorted(classes.items(), key=_strictness)),
        {name: ratio(each.tenants.get(name, (0.0, 0.0)) for each in samples) for name in tenants},
        _worst([met / of for met, of in models if of]),
        _quantiles([seconds for each in samples for seconds in each.latency_s]),
    )


def ratio(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Amount on time over the total; None without any."""
    met, of = _sum(pairs)
    return met / of if of else None


def _sum(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    met, of = (sum(column) for column in zip(*pairs, strict=True))
    return met, of


def _strictness(entry: tuple[Slo, object]) -> tuple[float, float]:
    return entry[0].ttft_s, entry[0].tbt_s


def _worst(shares: Sequence[float]) -> float | None:
    worst = sorted(shares)[: ceil(WORST_SHARE * len(shares))]
    return sum(worst) / len(worst) if worst else None


def _quantiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    figures = np.quantile(np.array(seconds), list(_QUANTILES.values()))
    return dict(zip(_QUANTILES, (float(s) for s in figures), strict=True))
