"""A request as the baselines see it, and what they all run on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from aegaeon_simulator.baselines.process import Process, Signal, StartProcess
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.devices import Device, Kind
from aegaeon_simulator.results.outcome import Outcome, Served
from aegaeon_simulator.results.usage import DeviceUsage
from aegaeon_simulator.settings import Settings
from aegaeon_simulator.workload import Workload


class State(Enum):
    """The progress of a request; `over`: it needs no more work."""

    WAITING = "waiting", False
    RUNNING = "running", False
    FINISHED = "finished", True
    FAILED = "failed", True

    def __init__(self, _name: str, over: bool) -> None:
        self.over = over


@dataclass(slots=True, eq=False)
class Job:
    """One request. `done` tokens came, at `times` (seconds since its arrival); `cached`: its KV is there."""

    order: int
    model: int
    kind: Kind
    input_tokens: int
    length: int
    arrival_s: float
    done: int = 0
    cached: bool = False
    state: State = State.WAITING
    times: list[float] = field(default_factory=list)

    @property
    def context(self) -> int:
        """Tokens of prompt and output so far."""
        return self.input_tokens + self.done

    def evict(self) -> None:
        """Its KV is dropped: it is computed again from the start."""
        self.cached = False
        if not self.state.over:
            self.state = State.WAITING


def contexts(jobs: Iterable[Job]) -> int:
    """Tokens of their prompts and outputs so far."""
    return sum([job.input_tokens + job.done for job in jobs])


def token_of_each(jobs: Iterable[Job], now: float) -> bool:
    """One more token of each is out; whether that was the last one of any. Without calls: most of a run's time."""
    ended = False
    for job in jobs:
        job.done += 1
        job.cached = True
        job.times.append(now - job.arrival_s)
        if job.done >= job.length:
            job.state = State.FINISHED
            ended = True
    return ended


class Bench:
    """Clock, device and jobs of one run; `step_s` and the like are the device's."""

    def __init__(self, settings: Settings, workload: Workload, device: Device) -> None:
        self.settings = settings
        self.device = device
        self.clock = Clock()
        self.start = StartProcess(self.clock)
        self.wake = Signal()
        self._usage: list[DeviceUsage] = []
        self.kinds = [device.kind(name) for name in workload.kinds]
        self._arrivals = workload.arrivals
        self.jobs = [
            Job(i, a.model, self.kinds[a.model], a.input_tokens, a.output_tokens, a.t_s)
            for i, a in enumerate(workload.arrivals)
        ]

    def usage(self) -> DeviceUsage:
        """The record of one more device."""
        self._usage.append(DeviceUsage(self.device.name, self.device.gpus))
        return self._usage[-1]

    def wake_all(self) -> None:
        """Every idle worker looks around."""
        self.wake.give(self.clock, self.start)

    def run(self, workers: list[Process], arrive: Callable[[Job], None], progress: Callable[[float], None]) -> Outcome:
        """Let the jobs arrive and the workers work until there is nothing left to do, or the drain is over.

        Workers are closed then: what they have not yet written of their jobs they write at their end.
        """
        for job in self.jobs:
            self.clock.at(job.arrival_s, lambda j=job: arrive(j))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        for worker in workers:
            self.start(worker)
        end = (self.jobs[-1].arrival_s if self.jobs else 0.0) + self.settings.drain_s
        reported, busy_until = 0.0, 0.0
        while (at := self.clock.next_at()) is not None and at <= end:
            self.clock.step()
            busy_until = at
            if at >= reported:
                progress(at)
                reported = at + 1.0
        for worker in workers:
            worker.close()
        requests = [
            Served(j.model, j.length, j.arrival_s, j.times, tenant=a.tenant, defer_s=a.defer_s)
            for j, a in zip(self.jobs, self._arrivals, strict=True)
        ]
        return Outcome(requests, self._usage, busy_until, self.start.steps)
