"""Results of a run: every request with the times of its tokens, and the use of the devices' seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aegaeon_scheduler.core.domain import Slo, Terms, Tier
from aegaeon_scheduler.core.slo import Attainment, attainment
from aegaeon_simulator.results.usage import DeviceUsage

SloOf = Callable[[int], Slo]
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(slots=True)
class Served:
    """One request: seconds from its arrival to each token (`length` were due), or to its refusal (`refused_s`)."""

    model: int
    length: int
    arrival_s: float
    times: list[float] = field(default_factory=list)
    refused_s: float | None = None

    @property
    def refused(self) -> bool:
        """True when the request was refused."""
        return self.refused_s is not None

    @property
    def finished(self) -> bool:
        """True when every token was delivered."""
        return len(self.times) >= self.length


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run of `gpus` devices over `span_s` seconds. `events`: how many the run took."""

    requests: list[Served]
    usage: list[DeviceUsage]
    span_s: float
    events: int

    def attainment(self, slo: Slo) -> Attainment:
        """All three forms over every request offered."""
        return attainment((r.times, slo, r.length) for r in self.requests)


def by_tier(outcome: Outcome, slo_of: SloOf, terms: Sequence[Terms]) -> dict[str, dict[str, float] | None]:
    """Attainment of the models of each tier in use."""
    tiers = [t for t in Tier if any(x.tier is t for x in terms)]
    return {t.value: _shares([r for r in outcome.requests if terms[r.model].tier is t], slo_of) for t in tiers}


def report(outcome: Outcome, slo_of: SloOf, names: Sequence[str], kinds: Sequence[str]) -> dict[str, Any]:
    """The run's figures as JSON values. Seconds; shares in 0..1; `slo_of` gives a model's objective by its number."""
    by_model: list[list[Served]] = [[] for _ in names]
    for request in outcome.requests:
        by_model[request.model].append(request)
    return {
        "attainment": _shares(outcome.requests, slo_of),
        "requests": _counts(outcome.requests),
        "ttft_s": _quantiles([r.times[0] for r in outcome.requests if r.times]),
        "tbt_s": _quantiles(_gaps(outcome.requests)),
        "switches": sum(len(u.stalls) for u in outcome.usage),
        "prefetch_hits": sum(u.hits for u in outcome.usage),
        "disk_loads": sum(u.disk_loads for u in outcome.usage),
        "stall_s": sum(u.switch_s for u in outcome.usage),
        "gpu_seconds": _seconds(outcome.usage, outcome.span_s),
        "span_s": outcome.span_s,
        "models": {
            name: {"kind": kinds[m], "requests": _counts(by_model[m]), "attainment": _shares(by_model[m], slo_of)}
            for m, name in enumerate(names)
        },
    }


def _shares(requests: list[Served], slo_of: SloOf) -> dict[str, float] | None:
    """Shares on time; None without requests."""
    if not requests:
        return None
    a = attainment((r.times, slo_of(r.model), r.length) for r in requests)
    return {"token": a.token, "request": a.request, "time": a.time}


def _counts(requests: list[Served]) -> dict[str, int]:
    return {
        "offered": len(requests),
        "finished": sum(r.finished for r in requests),
        "unserved": sum(not r.times for r in requests),
        "refused": sum(r.refused for r in requests),
    }


def _gaps(requests: list[Served]) -> list[float]:
    gaps = [np.diff(r.times) for r in requests if len(r.times) > 1]
    return np.concatenate(gaps).tolist() if gaps else []


def _quantiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    quantiles = np.quantile(np.array(values), list(_QUANTILES.values()))
    return dict(zip(_QUANTILES, (float(v) for v in quantiles), strict=True))


def _seconds(usage: list[DeviceUsage], span_s: float) -> dict[str, float]:
    prefill = sum(u.gpus * u.prefill_s for u in usage)
    decode = sum(u.gpus * u.decode_s for u in usage)
    switch = sum(u.gpus * (u.switch_s + u.first_s) for u in usage)
    idle = max(0.0, sum(u.gpus for u in usage) * span_s - prefill - decode - switch)
    return {"prefill": prefill, "decode": decode, "switch": switch, "idle": idle}


def seconds_by_device(outcome: Outcome) -> dict[str, dict[str, float]]:
    """GPU-seconds by use, for each make."""
    makes = dict.fromkeys(u.device for u in outcome.usage)
    return {make: _seconds([u for u in outcome.usage if u.device == make], outcome.span_s) for make in makes}
