"""The JSON figures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aegaeon_scheduler.core.domain import Terms, Tier
from aegaeon_simulator.results.outcome import Outcome, Served, SloOf
from aegaeon_simulator.results.shares import (
    by_class,
    by_model,
    by_session,
    by_tenant,
    counts,
    latencies,
    quantiles,
    shares,
    worst_decile,
)
from aegaeon_simulator.results.usage import DeviceUsage


def by_tier(outcome: Outcome, slo_of: SloOf, terms: Sequence[Terms]) -> dict[str, dict[str, float] | None]:
    """Attainment of the models of each tier in use."""
    tiers = [t for t in Tier if any(x.tier is t for x in terms)]
    return {t.value: shares([r for r in outcome.requests if terms[r.model].tier is t], slo_of) for t in tiers}


def report(outcome: Outcome, slo_of: SloOf, names: Sequence[str], kinds: Sequence[str]) -> dict[str, Any]:
    """The run's figures as JSON values. Seconds; shares in 0..1; `slo_of` gives a model's objective by its number."""
    requests, usage = outcome.requests, outcome.usage
    tenants, sessions = by_tenant(requests, slo_of), by_session(requests)
    return {
        "attainment": shares(requests, slo_of),
        "requests": counts(requests),
        "ttft_s": quantiles([r.times[0] for r in requests if r.times]),
        "tbt_s": quantiles(_gaps(requests)),
        "latency_s": latencies(requests),
        "switches": sum(len(u.stalls) for u in usage),
        "prefetch_hits": sum(u.hits for u in usage),
        "disk_loads": sum(u.disk_loads for u in usage),
        "stall_s": sum(u.switch_s for u in usage),
        "gpu_seconds": _seconds(usage, outcome.span_s),
        "span_s": outcome.span_s,
        "models": by_model(requests, slo_of, names, kinds),
        "classes": by_class(requests, slo_of),
        "worst_decile": worst_decile(requests, slo_of),
        **({"tenants": tenants} if tenants else {}),
        **({"sessions": sessions} if sessions else {}),
        **({"prompt_tokens": prompts} if (prompts := prompt_tokens(outcome)) else {}),
    }


def prompt_tokens(outcome: Outcome) -> dict[str, float]:
    """Tokens of prompts that were computed and that were found in prefix caches, and of the former the least possible;
    empty where no prompts begin alike."""
    if outcome.least_tokens is None:
        return {}
    computed = sum(u.prefill_tokens for u in outcome.usage)
    reused = sum(u.reused_tokens for u in outcome.usage)
    ratio = computed / max(outcome.least_tokens, 1)
    return {"computed": computed, "reused": reused, "least": outcome.least_tokens, "computed_by_least": ratio}


def _gaps(requests: Sequence[Served]) -> list[float]:
    gaps = [np.diff(r.times) for r in requests if len(r.times) > 1]
    return np.concatenate(gaps).tolist() if gaps else []


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
