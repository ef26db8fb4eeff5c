"""Continuous batching on one device with its models: prompts first come first served, then decode steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aegaeon_simulator.baselines.batch import Batch
from aegaeon_simulator.baselines.job import Bench, Job, State, token_of_each
from aegaeon_simulator.baselines.process import Process
from aegaeon_simulator.devices import Kind


class Station:
    """One device: its resident models, whose running requests decode in turns of one step."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.usage = bench.usage()
        self.models: dict[int, Batch] = {}
        self.prompts: deque[Job] = deque()
        self._room = 0.0  # bytes for KV
        self._turn = 0

    def hold(self, model: int, kind: Kind) -> None:
        """The model is resident from now on."""
        self.models[model] = Batch(kind)
        self._room = self._room or self.bench.device.model_bytes
        self._room -= kind.weight_bytes

    def write_outcomes(self) -> None:
        """The run is over: what became of requests that are not."""
        for batch in self.models.values():
            batch.write_outcomes()

    def clear(self) -> None:
        """Unload all models."""
        self.models, self._room = {}, 0.0

    def drop_kv(self) -> list[Job]:
        """All that runs or waits here, without its KV: it is computed again wherever it goes on."""
        jobs = [job for batch in self.models.values() for job in batch.jobs()] + list(self.prompts)
        self.write_outcomes()
        self.models = {model: Batch(batch.kind) for model, batch in self.models.items()}
        self.prompts.clear()
        for job in jobs:
            job.evict()
        return jobs

    @property
    def spare_bytes(self) -> float:
        """Memory that is used neither by weights nor by the KV of running or waiting jobs."""
        return self._room - self._used()

    @property
    def idle(self) -> bool:
        """True when no job runs or waits on this device."""
        return not self.prompts and not any(self.models.values())

    def fits(self, job: Job) -> bool:
        """True when the KV of one more job fits at its length so far."""
        return job.context * job.kind.kv_bytes_per_token <= self.spare_bytes

    def _used(self) -> float:
        used = sum(batch.kv_bytes for batch in self.models.values())
        return used + sum(j.context * j.kind.kv_bytes_per_token for j in self.prompts)

    def work(self, until: Callable[[], bool] = lambda: False) -> Process:
        """Work until the queue is empty: the oldest prompt that fits, else one step of the next model."""
        while not self.idle and not until():
            if self.prompts and self._fits_now(self.prompts[0]):
                yield from self._prefill(self.prompts.popleft())
            else:
                yield from self._step()

    def _fits_now(self, job: Job) -> bool:
        if len(self.models[job.model]) >= self.bench.device.max_batch:
            return False
        used = sum(batch.kv_bytes for batch in self.models.values())
        return not used or used + job.context * job.kind.kv_bytes_per_token <= self._room

    def _prefill(self, job: Job) -> Process:
        seconds = self.bench.device.prefill_s(job.kind, [job.context])
        self.usage.prefill_s += seconds
        yield seconds
        job.state = State.RUNNING
        token_of_each([job], self.bench.clock.now)
        if job.state is State.RUNNING:
            self.models[job.model].join(job)

    def _step(self) -> Process:
        """One decode step of the next model that has running requests."""
        order = list(self.models)
        for i in range(len(order)):
            batch = self.models[order[(self._turn + i) % len(order)]]
            if batch:
                self._turn = (self._turn + i + 1) % len(order)
                break
        seconds = self.bench.device.step_s(batch.kind, batch.context, len(batch))
        self.usage.decode_s += seconds
        yield seconds
        batch.step(self.bench.clock.now)


class StaticPool:
    """Models are bound to devices for ever: at most `most` on each, as far as weights leave `spare` for KV."""

    def __init__(self, bench: Bench, count: int, most: int, spare: float) -> None:
        self._bench = bench
        self._stations = [Station(bench) for _ in range(count)]
        self._home: dict[int, Station] = {}
        free = [bench.device.model_bytes * (1 - spare)] * count
        for model, kind in enumerate(bench.kinds):
            able = [i for i in range(count) if len(self._stations[i].models) < most and free[i] >= kind.weight_bytes]
            if able:
                at = max(able, key=lambda i: (free[i], -i))
                free[at] -= kind.weight_bytes
                self._stations[at].hold(model, kind)
                self._home[model] = self._stations[at]

    def workers(self) -> list[Process]:
        """One process a device."""
        return [self._run(station) for station in self._stations]

    def arrive(self, job: Job) -> None:
        """Send the job to its model's device; without one it is never served."""
        station = self._home.get(job.model)
        if station is not None:
            station.prompts.append(job)
            self._bench.wake_all()

    def _run(self, station: Station) -> Process:
        try:
            while True:
                yield from station.work()
                yield self._bench.wake
        finally:
            station.write_outcomes()


class FairPool:
    """One queue for all: who cannot join its model's running batch waits in line for the next free device."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self._stations = [Station(bench) for _ in range(count)]
        self._queue: list[Job] = []

    def workers(self) -> list[Process]:
        """One process a device."""
        return [self._run(station) for station in self._stations]

    def arrive(self, job: Job) -> None:
        """Join a batch with room, else wait in the queue."""
        if not self._join(job):
            self._queue.append(job)
            self._bench.wake_all()

    def _join(self, job: Job) -> bool:
        busy = [s for s in self._stations if job.model in s.models and not s.idle and s.fits(job)]
        if not busy:
            return False
        station = min(busy, key=lambda s: len(s.prompts) + len(s.models[job.model]))
        station.prompts.append(job)
        return True

    def _run(self, station: Station) -> Process:
        try:
            while True:
                job = self._first(station)
                if job is None:
                    yield self._bench.wake
                else:
                    yield from self._serve(station, job)
        finally:
            station.write_outcomes()

    def _first(self, station: Station) -> Job | None:
        """The first job in line, unless an idle device with its model can take it."""
        for job in self._queue:
            idle_with_model = (s for s in self._stations if s is not station and s.idle and self._here(s, job.model))
            if self._here(station, job.model) or next(idle_with_model, None) is None:
                return job
        return None

    def _here(self, station: Station, model: int) -> bool:
        """True when the device has the model's weights."""
        return model in station.models

    def _serve(self, station: Station, job: Job) -> Process:
        self._queue.remove(job)
        station.prompts.append(job)
        if job.model not in station.models:
            seconds = self._change(station, job)
            station.usage.changed(seconds)
            station.usage.switch_s += seconds
            self._take(station)
            yield seconds
        self._take(station)
        yield from self._work(station)

    def _change(self, station: Station, job: Job) -> float:
        """Replace the resident model; returns the seconds until the new one runs."""
        station.clear()
        station.hold(job.model, job.kind)
        return self._bench.device.load_s(job.kind)

    def _work(self, station: Station) -> Process:
        yield from station.work()

    def _take(self, station: Station) -> None:
        """Add the queued jobs whose model is resident."""
        for job in [j for j in self._queue if j.model in station.models]:
            if station.fits(job):
                self._queue.remove(job)
                station.prompts.append(job)
