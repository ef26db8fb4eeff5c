"""`prewarm`: `serverlessllm-fair` whose devices load models before they are asked for, by how often they were.

The idea of WarmServe (one device warms many models): weights of those expected most fill the memory that the running
model leaves. KV comes first; a model that was warmed runs at once.
"""

from __future__ import annotations

from math import exp

from aegaeon_simulator.baselines.job import Bench, Job
from aegaeon_simulator.baselines.process import Process
from aegaeon_simulator.baselines.station import FairPool, Station

FORGET_S = 60.0  # after so long a request counts a third
FOR_KV = 0.5  # share of the memory beside the running model's weights that is not filled


class _Forecast:
    """Requests of each model, older ones counting less: what is expected of it."""

    def __init__(self, bench: Bench) -> None:
        self._clock = bench.clock
        self._seen: dict[int, tuple[float, float]] = {}

    def saw(self, model: int) -> None:
        """A request of it has come."""
        self._seen[model] = (self.expected(model) + 1.0, self._clock.now)

    def expected(self, model: int) -> float:
        """The expected demand for a model."""
        count, at = self._seen.get(model, (0.0, 0.0))
        return count * exp((at - self._clock.now) / FORGET_S)

    def by_need(self) -> list[int]:
        """Models asked for so far, most expected first."""
        return sorted(self._seen, key=lambda model: (-self.expected(model), model))


class PrewarmPool(FairPool):
    """One queue for all; every device has warm models beside the one that runs."""

    def __init__(self, bench: Bench, count: int) -> None:
        super().__init__(bench, count)
        self._forecast = _Forecast(bench)
        self._warm: dict[Station, dict[int, int]] = {station: {} for station in self._stations}  # bytes by model
        self._loading: set[int] = set()

    def workers(self) -> list[Process]:
        """Two processes a device: one runs requests, one warms models."""
        return super().workers() + [self._warm_up(station) for station in self._stations]

    def arrive(self, job: Job) -> None:
        """Update the forecast, then serve as without prewarming."""
        self._forecast.saw(job.model)
        for station in self._stations:
            self._make_room(station)
        super().arrive(job)

    def _here(self, station: Station, model: int) -> bool:
        return super()._here(station, model) or model in self._warm[station]

    def _change(self, station: Station, job: Job) -> float:
        """Keep the previous model warm while there is room; a warm model runs at once."""
        warm = self._warm[station]
        was_warm = warm.pop(job.model, None) is not None
        warm.update((model, self._bench.kinds[model].weight_bytes) for model in station.models)
        seconds = super()._change(station, job)
        self._make_room(station)
        return self._bench.device.change_s if was_warm else seconds

    def _make_room(self, station: Station) -> None:
        """Evict the models with the least expected demand: KV and the running model have priority."""
        warm = self._warm[station]
        for model in reversed(self._forecast.by_need()):
            if sum(warm.values()) <= station.spare_bytes:
                return
            warm.pop(model, None)

    def _warm_up(self, station: Station) -> Process:
        """Load the model with the most expected demand that is on no device, while there is room."""
        while True:
            model = self._next(station)
            if model is None:
                yield self._bench.wake
                continue
            kind = self._bench.kinds[model]
            self._loading.add(model)
            yield self._bench.device.load_s(kind)
            self._loading.discard(model)
            if model not in station.models:
                self._warm[station][model] = kind.weight_bytes
                self._make_room(station)

    def _next(self, station: Station) -> int | None:
        warm = self._warm[station]
        room = station.spare_bytes * (1 - FOR_KV) - sum(warm.values())
        loaded = {model for s in self._stations for model in (*s.models, *self._warm[s])} | self._loading
        for model in self._forecast.by_need():
            if model in loaded:
                continue
            drop = [m for m in warm if 2 * self._forecast.expected(m) < self._forecast.expected(model)]
            if self._bench.kinds[model].weight_bytes > room + sum(warm[m] for m in drop):
                return None
            for m in drop:
                del warm[m]
            return model
        return None
