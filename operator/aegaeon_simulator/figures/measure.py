"""The metrics kept of one run: attainment, request latency by part (Figure 14), switch delays (Figure 15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from aegaeon_simulator.devices import Device, Kind
from aegaeon_simulator.figures.points import Point, run_of
from aegaeon_simulator.results.outcome import Outcome, Served
from aegaeon_simulator.run import effective, result, simulate

STALL_QUANTILES = tuple(q / 50 for q in range(51))
PARTS = ("prefill_wait", "prefill", "decode_wait", "decode")
_KEPT = ("attainment", "requests", "ttft_s", "switches", "prefetch_hits", "stall_s", "gpu_seconds", "span_s")


def measure(point: Point, data: Path) -> dict[str, Any]:
    """Run a point; figures as JSON values, the same bytes for the same point. Seconds; shares in 0..1."""
    run = run_of(point, data)
    outcome = simulate(run)
    figures = result(run, outcome)
    workload = effective(run)
    kinds = [run.device.kind(name) for name in workload.kinds]
    lengths = [arrival.input_tokens for arrival in workload.arrivals]
    kept = {name: figures[name] for name in _KEPT}
    return {
        **kept,
        "derived": list(run.device.derived),
        "latency_parts": latency_parts(outcome.requests, lengths, kinds, run.device),
        "stalls_s": _stalls(outcome),
    }


def latency_parts(requests: list[Served], inputs: list[int], kinds: list[Kind], device: Device) -> dict[str, float]:
    """Shares of all requests' latency: waiting for and doing the prompt, waiting between tokens, decoding.

    A gap between tokens up to the request's median gap is decoding, the rest is waiting; copies count as waiting.
    """
    sums = dict.fromkeys(PARTS, 0.0)
    for request, tokens in zip(requests, inputs, strict=True):
        if request.times:
            _add(sums, request, device.prefill_s(kinds[request.model], [tokens]))
    total = sum(sums.values()) or 1.0
    return {name: value / total for name, value in sums.items()}


def _add(sums: dict[str, float], request: Served, prefill_s: float) -> None:
    done_s = min(prefill_s, request.times[0])
    sums["prefill"] += done_s
    sums["prefill_wait"] += request.times[0] - done_s
    gaps = np.diff(request.times)
    if len(gaps):
        decoding = float(np.minimum(gaps, np.median(gaps)).sum())
        sums["decode"] += decoding
        sums["decode_wait"] += float(gaps.sum()) - decoding


def _stalls(outcome: Outcome) -> list[float] | None:
    """Quantiles of the seconds that model switches waited; None when there was no switch."""
    waits = [s for used in outcome.usage for s in used.stalls]
    return [float(v) for v in np.quantile(waits, STALL_QUANTILES)] if waits else None
