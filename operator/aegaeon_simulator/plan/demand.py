"""The demand on a pool: models and their rates, from which arrivals are drawn, or the arrivals of a trace.

Each model's arrivals come from its own random stream, so pools of different sizes get the same requests, and adding a
model changes no other's arrivals (common random numbers).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from zlib import crc32

import numpy as np

from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.plan.errors import PlanError
from aegaeon_simulator.workload import Arrival, Lengths, Workload
from aegaeon_simulator.workload.objectives import read_slos

SHORTEST_S, LONGEST_S = 90.0, 900.0
REQUESTS = 450  # in a window, where its length allows: enough for a share to within a few points


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """One model: its kind, requests per second, whose it is; mean lengths in tokens where they are known; its objective
    where it is not that of all."""

    name: str
    kind: str
    rate: float
    tenant: str = ""
    input_tokens: float | None = None
    output_tokens: float | None = None
    slo: Slo | None = None


class Traffic(Protocol):
    """A source of requests. A fixed trace has one draw, whatever the seed."""

    @property
    def models(self) -> Sequence[ModelDemand]:
        """The models and their rates."""

    @property
    def window_s(self) -> float:
        """Seconds of arrivals in a draw."""

    @property
    def random(self) -> bool:
        """True when another seed gives other arrivals."""

    def draw(self, seed: int) -> Workload:
        """Arrivals of one window."""


@dataclass(frozen=True, slots=True)
class PoissonTraffic:
    """Independent Poisson arrivals at each model's rate; lengths from pairs, scaled to the model's means."""

    models: tuple[ModelDemand, ...]
    lengths: Lengths
    window_s: float
    random: bool = True

    def draw(self, seed: int) -> Workload:
        """Arrivals of one window; equal seeds give equal arrivals."""
        arrivals = [a for m, model in enumerate(self.models) for a in self._arrivals(m, model, seed)]
        arrivals.sort(key=lambda a: a.t_s)
        return Workload(tuple(m.kind for m in self.models), tuple(arrivals), tuple(m.name for m in self.models))

    def _arrivals(self, index: int, model: ModelDemand, seed: int) -> list[Arrival]:
        random = np.random.default_rng([seed, crc32(model.name.encode())])
        mean_in, mean_out = mean_lengths(self.lengths)
        longer, further = (model.input_tokens or mean_in) / mean_in, (model.output_tokens or mean_out) / mean_out
        arrivals: list[Arrival] = []
        t_s = float(random.exponential(1 / model.rate))
        while t_s < self.window_s:
            input_tokens, output_tokens = self.lengths.pairs[int(random.integers(len(self.lengths.pairs)))]
            lengths = max(1, round(input_tokens * longer)), max(1, round(output_tokens * further))
            arrivals.append(Arrival(t_s, index, *lengths, model.tenant))
            t_s += float(random.exponential(1 / model.rate))
        return arrivals


@dataclass(frozen=True, slots=True)
class TraceTraffic:
    """The busiest window of a trace; its models are those of the whole trace, at the window's rates."""

    workload: Workload
    models: tuple[ModelDemand, ...]
    window_s: float
    random: bool = False

    def draw(self, seed: int) -> Workload:
        """The window, for every seed."""
        return self.workload


def with_slos(traffic: Traffic, path: Path, default: Slo) -> Traffic:
    """The same requests, with the objectives that a file gives models; those that it omits keep their own, or have
    `default`. Raises TraceError."""
    names = [model.name for model in traffic.models]
    own = [model.slo or default for model in traffic.models]
    slos = read_slos(path, names, own)
    models = tuple(replace(model, slo=slo) for model, slo in zip(traffic.models, slos, strict=True))
    assert isinstance(traffic, (PoissonTraffic, TraceTraffic))
    return replace(traffic, models=models)


def mean_lengths(lengths: Lengths) -> tuple[float, float]:
    """Mean (input, output) tokens of the pairs."""
    count = len(lengths.pairs)
    return sum(p[0] for p in lengths.pairs) / count, sum(p[1] for p in lengths.pairs) / count


def poisson_traffic(models: Sequence[ModelDemand], lengths: Lengths, window_s: float | None = None) -> PoissonTraffic:
    """Traffic of these models; without a window, one that is long enough for REQUESTS. Raises PlanError."""
    if not models:
        raise PlanError("no models; add a file of models, a trace, or --models and --rate")
    for model in models:
        if not 0 < model.rate < math.inf:
            raise PlanError(
                f"model {model.name}: the rate is {model.rate:g}; it must be requests per second, more than 0"
            )
    names = [m.name for m in models]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise PlanError(f"model {twice} appears twice; rename one of them")
    total = sum(m.rate for m in models)
    return PoissonTraffic(tuple(models), lengths, _window(window_s, REQUESTS / total))


def trace_traffic(trace: Workload, window_s: float | None = None) -> TraceTraffic:
    """The busiest window of the trace, by output tokens. Raises PlanError."""
    rate = len(trace.arrivals) / max(1.0, trace.arrivals[-1].t_s - trace.arrivals[0].t_s)
    seconds = _window(window_s, 3 * REQUESTS / rate)
    window = busiest(trace, seconds)
    seconds = min(seconds, window.arrivals[-1].t_s + 1e-6)
    counts = [0] * len(trace.kinds)
    for arrival in window.arrivals:
        counts[arrival.model] += 1
    models = zip(trace.names, trace.kinds, counts, strict=True)
    return TraceTraffic(window, tuple(ModelDemand(n, k, c / seconds) for n, k, c in models), seconds)


def busiest(trace: Workload, seconds: float) -> Workload:
    """The window with the most output tokens among those that begin at an arrival; its times begin at 0."""
    times = [a.t_s for a in trace.arrivals]
    tokens = np.cumsum([0] + [a.output_tokens for a in trace.arrivals])
    ends = [bisect_left(times, t + seconds) for t in times]
    begin = max(range(len(times)), key=lambda i: (tokens[ends[i]] - tokens[i], -i))
    at = times[begin]
    kept = (replace(a, t_s=a.t_s - at) for a in trace.arrivals[begin : ends[begin]])
    return Workload(trace.kinds, tuple(kept), trace.names)


def _window(window_s: float | None, default_s: float) -> float:
    if window_s is None:
        return min(LONGEST_S, max(SHORTEST_S, default_s))
    if not 0 < window_s < math.inf:
        raise PlanError(f"the window is {window_s:g} s; it must be more than 0")
    return window_s
