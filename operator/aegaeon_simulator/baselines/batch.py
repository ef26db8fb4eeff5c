"""A decode batch: simulating one step costs the same for any number of requests."""

from __future__ import annotations

from aegaeon_simulator.baselines.job import Job, State
from aegaeon_simulator.devices import Kind


class Batch:
    """Running requests of one model, one token of each in every step.

    While a request is in it, its `done`, `times` and `state` stay what they were: `step` writes them when its last
    token is out, `write_outcomes` for all that are left.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.context = 0  # tokens of all, prompts and outputs so far
        self._ticks: list[float] = []  # when each step was over, since it was empty
        self._since: dict[Job, int] = {}  # the steps that were over when it joined
        self._last: dict[int, list[Job]] = {}  # by the steps that are over then

    def __len__(self) -> int:
        return len(self._since)

    @property
    def kv_bytes(self) -> int:
        """KV bytes of all jobs at their lengths so far."""
        return self.context * self.kind.kv_bytes_per_token

    def jobs(self) -> list[Job]:
        """The jobs of the batch, in the order in which they joined."""
        return list(self._since)

    def join(self, job: Job) -> None:
        """Add the job, from the next step on."""
        ticks = len(self._ticks)
        self._since[job] = ticks
        self._last.setdefault(ticks + job.length - job.done, []).append(job)
        self.context += job.context

    def step(self, now: float) -> None:
        """Output one more token of each job."""
        self._ticks.append(now)
        self.context += len(self._since)
        for job in self._last.pop(len(self._ticks), ()):
            self._write(job)
            self.context -= job.context
        if not self._since:
            self._ticks = []

    def write_outcomes(self) -> None:
        """Write the outcomes of all jobs in it at the end of the run."""
        for job in list(self._since):
            self._write(job)

    def _write(self, job: Job) -> None:
        times = self._ticks[self._since.pop(job) :]
        job.times += [now - job.arrival_s for now in times]
        job.done += len(times)
        if job.done >= job.length:
            job.state = State.FINISHED
