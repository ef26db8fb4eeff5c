"""Attainment by model, tenant and class of objective, and of the models that are served worst: a mean hides them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.results.outcome import Served, SloOf

WORST_SHARE = 0.1  # of the models with requests
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


def shares(requests: Sequence[Served], slo_of: SloOf) -> dict[str, float] | None:
    """Shares on time; None without requests."""
    if not requests:
        return None
    a = attainment((r.times, r.due(slo_of(r.model)), r.length) for r in requests)
    return {"token": a.token, "request": a.request, "time": a.time}


def counts(requests: Sequence[Served]) -> dict[str, int]:
    """Requests by what became of them."""
    return {
        "offered": len(requests),
        "finished": sum(r.finished for r in requests),
        "unserved": sum(not r.times for r in requests),
        "refused": sum(r.refused for r in requests),
    }


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """Seconds by quantile; None without values."""
    if not values:
        return None
    at = np.quantile(np.array(values), list(_QUANTILES.values()))
    return dict(zip(_QUANTILES, (float(v) for v in at), strict=True))


def latencies(requests: Sequence[Served]) -> dict[str, float] | None:
    """Seconds from arrival to the last token of answers that were delivered complete."""
    return quantiles([r.times[-1] for r in requests if r.finished and r.times])


def by_model(requests: Sequence[Served], slo_of: SloOf, names: Sequence[str], kinds: Sequence[str]) -> dict[str, Any]:
    """Figures of each model, by its name."""
    of: list[list[Served]] = [[] for _ in names]
    for request in requests:
        of[request.model].append(request)
    return {
        name: {
            "kind": kinds[m],
            "slo": _objective(slo_of(m)),
            "requests": counts(of[m]),
            "attainment": shares(of[m], slo_of),
        }
        for m, name in enumerate(names)
    }


def by_tenant(requests: Sequence[Served], slo_of: SloOf) -> dict[str, Any]:
    """Figures of each tenant that is named, by its name."""
    of: defaultdict[str, list[Served]] = defaultdict(list)
    for request in requests:
        of[request.tenant].append(request)
    named = {tenant: of[tenant] for tenant in sorted(of) if tenant}
    return {tenant: _figures(these, slo_of) for tenant, these in named.items()}


def by_class(requests: Sequence[Served], slo_of: SloOf) -> list[dict[str, Any]]:
    """Figures of the models that share an objective, strictest first."""
    of: defaultdict[tuple[float, float], list[Served]] = defaultdict(list)
    for request in requests:
        slo = slo_of(request.model)
        of[slo.ttft_s, slo.tbt_s].append(request)
    return [
        {"slo": _objective(Slo(*key)), "models": len({r.model for r in these}), **_figures(these, slo_of)}
        for key, these in sorted(of.items())
    ]


def worst_decile(requests: Sequence[Served], slo_of: SloOf) -> dict[str, Any] | None:
    """Mean attainment of the tenth of the models with the fewest tokens on time; None without requests."""
    of: defaultdict[int, list[Served]] = defaultdict(list)
    for request in requests:
        of[request.model].append(request)
    each = [share for these in of.values() if (share := shares(these, slo_of)) is not None]
    if not each:
        return None
    worst = sorted(each, key=lambda share: share["token"])[: ceil(WORST_SHARE * len(each))]
    means = {form: sum(share[form] for share in worst) / len(worst) for form in worst[0]}
    return {"models": len(worst), "attainment": means}


def by_session(requests: Sequence[Served]) -> dict[str, Any]:
    """How many sessions there are, how many of them have all their answers, and the seconds that each of those took
    from its first request to the end of its last answer."""
    of: defaultdict[str, list[Served]] = defaultdict(list)
    for request in requests:
        if request.session:
            of[request.session].append(request)
    complete = [these for these in of.values() if all(r.finished and r.times for r in these)]
    seconds = [max(r.arrival_s + r.times[-1] for r in these) - min(r.arrival_s for r in these) for these in complete]
    return {"offered": len(of), "finished": len(complete), "seconds": quantiles(seconds)} if of else {}


def _figures(requests: Sequence[Served], slo_of: SloOf) -> dict[str, Any]:
    figures = {"requests": counts(requests), "attainment": shares(requests, slo_of)}
    ttft = quantiles([r.times[0] for r in requests if r.times])
    return {**figures, "ttft_s": ttft, "latency_s": latencies(requests)}


def _objective(slo: Slo) -> dict[str, float]:
    return {"ttft_s": slo.ttft_s, "tbt_s": slo.tbt_s}
