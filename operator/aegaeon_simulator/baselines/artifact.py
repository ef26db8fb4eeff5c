"""`paper-artifact`: Algorithms 1 and 2 with the deviations of the paper's public artifact; facts read from its source.

Prefill groups have no limit and are counted, not timed; a load hides behind the compute since the last one; KV of a
turn is loaded in full before it; decode batches are formed anew at each round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from aegaeon_simulator.baselines.job import Bench, Job, State, contexts, token_of_each
from aegaeon_simulator.baselines.process import Process
from aegaeon_simulator.baselines.slots import PATIENCE_S
from aegaeon_simulator.devices import Kind

Q_MAX_S = 4.0
ALPHA_FLOOR = 0.5


class _Worker:
    """Common part of both roles: one model at a time; a load overlaps the previous model's computation if both fit."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._usage = bench.usage()
        self._model: int | None = None
        self._kind: Kind | None = None
        self._computed_s = 0.0

    def _swap(self, job: Job) -> Process:
        device, kind = self._bench.device, job.kind
        hidden = self._computed_s if self._kind is None or device.holds_both(self._kind, kind) else 0.0
        seconds = max(device.change_s, device.load_s(kind) - hidden)
        self._usage.changed(seconds)
        self._usage.switch_s += seconds
        yield seconds
        self._computed_s = 0.0
        self._model, self._kind = job.model, kind

    def fits(self, jobs: Iterable[Job], new: Job) -> bool:
        """True when the KV cache of all jobs fits beside the weights."""
        tokens = contexts(job for job in jobs if job.state is not State.FINISHED)
        return tokens + new.context <= self._bench.device.kv_tokens(new.kind)


class PrefillWorker(_Worker):
    """First come first served by groups of one model, one prompt at a time."""

    def __init__(self, bench: Bench, pool: ArtifactPool) -> None:
        super().__init__(bench)
        self._pool = pool
        self.groups: deque[list[Job]] = deque()

    def run(self) -> Process:
        """Run the first prompt of the first group, endlessly."""
        while True:
            if not self.groups:
                yield self._bench.wake
                continue
            job = self.groups[0].pop(0)
            if not self.groups[0]:
                self.groups.popleft()
            if job.model != self._model:
                yield from self._swap(job)
            job.state = State.RUNNING
            seconds = self._bench.device.prefill_s(job.kind, [job.context])
            self._usage.prefill_s += seconds
            yield seconds
            self._computed_s += seconds
            token_of_each([job], self._bench.clock.now)
            self._pool.prefilled(job)


class DecodeWorker(_Worker):
    """Rounds of one turn for each batch, with the quotas of Eq. 2-3."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.held: dict[int, Job] = {}
        self.queue: list[Job] = []
        self.batches: deque[tuple[float, list[Job]]] = deque()

    def run(self) -> Process:
        """Rounds as long as there is something to decode."""
        while True:
            self._enter_round()
            if not self.batches:
                yield self._bench.wake
                continue
            for _ in range(len(self.batches)):
                job = self.batches[0][1][0]
                if job.model != self._model:
                    yield from self._swap(job)
                    self._accept()
                yield from self._turn()
                self.batches.rotate(-1)
                self._accept()

    def _turn(self) -> Process:
        bench, (quota_s, batch) = self._bench, self.batches[0]
        yield from self._load_kv(batch)
        used = 0.0
        while used < quota_s and (running := [job for job in batch if job.state is not State.FINISHED]):
            seconds = bench.device.step_s(batch[0].kind, contexts(running), len(running))
            self._usage.decode_s += seconds
            yield seconds
            self._computed_s += seconds
            used += seconds
            if token_of_each(running, bench.clock.now):
                self.held = {order: job for order, job in self.held.items() if job.state is not State.FINISHED}
            self._accept()

    def _load_kv(self, batch: list[Job]) -> Process:
        device, tokens = self._bench.device, contexts(batch)
        kind = batch[0].kind
        each = device.kv_load_s_per_token or kind.kv_bytes_per_token / kind.latency.kv_bytes_per_s
        seconds = device.cut_to_ticks(tokens * each)
        self._usage.switch_s += seconds
        yield seconds

    def _accept(self) -> None:
        """Add each new job to a batch of its model; without one it waits as a batch without a quota for the next
        round."""
        if not self.queue:
            return
        for job in self.queue:
            self.held[job.order] = job
            batch = next((b for _, b in self.batches if b[0].model == job.model and self.fits(b, job)), None)
            if batch is None:
                self.batches.append((0.0, [job]))
            else:
                batch.append(job)
        self.queue = []

    def _enter_round(self) -> None:
        self.held.update((job.order, job) for job in self.queue)
        self.queue = []
        batches: list[list[Job]] = []
        for job in sorted(self.held.values(), key=lambda j: (j.arrival_s, j.order)):
            batch = next((b for b in batches if b[0].model == job.model and self.fits(b, job)), None)
            if batch is None:
                batches.append([job])
            else:
                batch.append(job)
        batches.sort(key=lambda b: b[0].model)
        self.batches = deque(zip(self._quotas(batches), batches, strict=True))

    def _step_s(self, batch: list[Job]) -> float:
        return self._bench.device.estimated_step_s(batch[0].kind, contexts(batch), len(batch))

    def _quotas(self, batches: list[list[Job]]) -> list[float]:
        """Eq. 2-3, where every model of the round counts as one that is to be loaded."""
        device, tbt_s = self._bench.device, self._bench.settings.slo.tbt_s
        n = [tbt_s / self._step_s(batch) for batch in batches]
        if not n:
            return []
        kinds = {batch[0].model: batch[0].kind for batch in batches}
        switch_s = sum(_load_s(kind) for kind in kinds.values())
        share = sum(1 / x for x in n)
        alpha = max(switch_s / min(n) / Q_MAX_S + share, ALPHA_FLOOR)
        return [device.cut_to_ticks(switch_s / (x * (alpha - share))) for x in n]


def _load_s(kind: Kind) -> float:
    return kind.weight_bytes / kind.latency.load_bytes_per_s


class ArtifactPool:
    """Assigns prompts and prefilled requests to workers."""

    def __init__(self, bench: Bench, prefill: int, decode: int) -> None:
        self._bench = bench
        self._silent: deque[Job] = deque()  # in the order in which they came; those without a token are among them
        self._given_up: set[int] = set()
        self._ready: dict[int, Job] = {}  # prefilled, and held by no decode worker when that was last looked at
        self.prefill = [PrefillWorker(bench, self) for _ in range(prefill)]
        self.decode = [DecodeWorker(bench) for _ in range(decode)]

    def arrive(self, job: Job) -> None:
        """Add the job to the first group of its model with room, else to a new group of the worker with the fewest."""
        self._silent.append(job)
        self._give_up()
        self._place(job)
        self._dispatch()

    def _place(self, job: Job) -> None:
        for worker in self.prefill:
            for group in worker.groups:
                if group[0].model == job.model and worker.fits(group, job):
                    group.append(job)
                    return
        min(self.prefill, key=lambda w: len(w.groups)).groups.append([job])

    def prefilled(self, job: Job) -> None:
        """Its first token is out."""
        self._give_up()
        if job.order not in self._given_up:
            self._ready[job.order] = job
        self._dispatch()

    def _dispatch(self) -> None:
        """Prefilled requests that no decode worker has taken yet are placed anew: a batch of the model, or fewest."""
        self._ready = {order: job for order, job in sorted(self._ready.items()) if not self._taken(job)}
        if self._ready:
            lists = [[list(batch) for _, batch in worker.batches] for worker in self.decode]
            for worker in self.decode:
                worker.queue = []
            for job in self._ready.values():
                self._to_decode(job, lists)
        self._bench.wake_all()

    def _taken(self, job: Job) -> bool:
        return job.state is State.FINISHED or any(job.order in worker.held for worker in self.decode)

    def _to_decode(self, job: Job, lists: list[list[list[Job]]]) -> None:
        for worker, batches in zip(self.decode, lists, strict=True):
            for batch in batches:
                if batch[0].model == job.model and worker.fits(batch, job):
                    batch.append(job)
                    worker.queue.append(job)
                    return
        at = min(range(len(lists)), key=lambda i: len(lists[i]))
        lists[at].append([job])
        self.decode[at].queue.append(job)

    def _give_up(self) -> None:
        """Drop jobs without a token after the patience; their prefill still runs."""
        now = self._bench.clock.now
        while self._silent and now - self._silent[0].arrival_s > PATIENCE_S:
            job = self._silent.popleft()
            if job.done == 0:
                self._given_up.add(job.order)
