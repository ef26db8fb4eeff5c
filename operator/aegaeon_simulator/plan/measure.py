"""Samples one simulated window: attainment by slice, and the GPU-seconds of each model.

The pool starts empty and ends draining; requests near both ends load it but are not counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal

from aegaeon_scheduler.core.domain import Slo
from aegaeon_scheduler.core.slo import time_attained, tokens_on_time
from aegaeon_simulator.devices import Device
from aegaeon_simulator.results.outcome import Outcome, Served
from aegaeon_simulator.run import Run, effective, simulate

Form = Literal["token", "request", "time"]
SLICES = 5  # of a window: attainment differs between them, which tells how sure the mean is
_EDGE_S = 30.0
_TICKS = 1_000_000  # a second: tokens of one model in the same tick come from the same step


@dataclass(frozen=True, slots=True)
class Trial:
    """One run, how its attainment is counted, and its window in seconds."""

    run: Run
    form: Form
    window_s: float


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one window. Pairs are (amount on time, total); `busy_s` GPU-seconds of each model; `latency_s` from
    arrival to the last token of each answer that was delivered whole."""

    slices: tuple[tuple[float, float], ...]
    models: tuple[tuple[float, float], ...]
    busy_s: tuple[float, ...]
    busy_share: float
    tokens: int
    tenants: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    latency_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """An estimated share with a one-sided bound on either side, each at the objective's confidence."""

    mean: float
    low: float
    high: float


def sample(trial: Trial) -> Sample:
    """Simulate the trial. Raises SettingsError and DeviceError."""
    outcome = simulate(trial.run)
    slo_of, workload = trial.run.settings.slo_of, effective(trial.run)
    edge = min(_EDGE_S, trial.window_s / 6)
    width = (trial.window_s - 2 * edge) / SLICES
    slices = [[0.0, 0.0] for _ in range(SLICES)]
    models = [[0.0, 0.0] for _ in workload.kinds]
    tenants: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for request in outcome.requests:
        score = _score(request, slo_of(request.model), trial.form)
        _add(models[request.model], score)
        _add(tenants[request.tenant], score)
        at = math.floor((request.arrival_s - edge) / width)
        if 0 <= at < SLICES:
            _add(slices[at], score)
    inputs = [a.input_tokens for a in workload.arrivals]
    busy = busy_seconds(outcome, inputs, workload.kinds, trial.run.device)
    used = sum(u.prefill_s + u.decode_s + u.switch_s + u.first_s for u in outcome.usage)
    return Sample(
        tuple((a, b) for a, b in slices),
        tuple((a, b) for a, b in models),
        tuple(busy),
        used / max(1e-9, len(outcome.usage) * outcome.span_s),
        sum(len(r.times) for r in outcome.requests),
        {tenant: (a, b) for tenant, (a, b) in tenants.items() if tenant},
        tuple(r.times[-1] for r in outcome.requests if r.finished and r.times),
    )


def _add(pair: list[float], score: tuple[float, float]) -> None:
    pair[0] += score[0]
    pair[1] += score[1]


def _score(request: Served, slo: Slo, form: Form) -> tuple[float, float]:
    """The amount of one request on time, and its total; a request that is never served counts in full."""
    due = max(request.length, len(request.times), 1)
    if form == "time":
        return time_attained(request.times, slo), 1.0
    met = tokens_on_time(request.times, slo)
    return (met, due) if form == "token" else (met / due, 1.0)


def busy_seconds(outcome: Outcome, inputs: Sequence[int], kinds: Sequence[str], device: Device) -> list[float]:
    """GPU-seconds of prefill and decode of each model, from the times of its tokens: those of one step come together.

    `inputs`: prompt tokens of each request, in the outcome's order.
    """
    batch: list[Counter[int]] = [Counter() for _ in kinds]
    context: list[defaultdict[int, int]] = [defaultdict(int) for _ in kinds]
    seconds = [0.0] * len(kinds)
    for request, prompt in zip(outcome.requests, inputs, strict=True):
        if request.times:
            seconds[request.model] += device.prefill_s(device.kind(kinds[request.model]), [prompt])
        for k, t in enumerate(request.times[1:], 1):
            tick = round((request.arrival_s + t) * _TICKS)
            batch[request.model][tick] += 1
            context[request.model][tick] += prompt + k
    for m, steps in enumerate(batch):
        kind = device.kind(kinds[m])
        seconds[m] += sum(device.step_s(kind, context[m][tick], size) for tick, size in steps.items())
    return seconds


def estimate(slices: Sequence[tuple[float, float]], confidence: float) -> Share | None:
    """A ratio of sums with its bounds from the spread between slices (Student's t); None without requests."""
    used = [(met, of) for met, of in slices if of > 0]
    total = sum(of for _, of in used)
    if not used:
        return None
    mean = sum(met for met, _ in used) / total
    count = len(used)
    if count < 2:
        return Share(mean, 0.0, 1.0)
    spread = sum((met - mean * of) ** 2 for met, of in used) / (count - 1)
    half = _student(confidence, count - 1) * math.sqrt(spread / count) / (total / count)
    return Share(mean, max(0.0, mean - half), min(1.0, mean + half))


def _student(confidence: float, freedom: int) -> float:
    """Quantile of Student's t by its expansion around the normal one: within 2 % from four degrees of freedom on."""
    z = NormalDist().inv_cdf(confidence)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
