"""`serverlessllm` and `serverlessllm-plus` as the paper's artifact has them: a request is bound to a worker at once.

A worker has one model and a queue; at its front it runs what is of one model. Facts read from the artifact's source.
"""

from __future__ import annotations

from collections import deque

from aegaeon_simulator.baselines.job import Bench, Job, State, contexts, token_of_each
from aegaeon_simulator.baselines.process import Process

SLOTS = 4  # requests of a model on one worker before the next worker is asked
_MOST_BATCH = 1024
PATIENCE_S = 15.0  # a request without a token after so long is given up


class SlotWorker:
    """One device: the model it has, its queue, when it last ran a batch. `ended`: some in the queue may be over."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._usage = bench.usage()
        self.model: int | None = None
        self.queue: deque[Job] = deque()
        self.ended = False
        self.last_batch_s = 0.0
        self._front_before: list[Job] = []  # no other can be running

    def run(self) -> Process:
        """Purge, then a batch of the model in place, or the load of the one in front."""
        while True:
            if self.ended:
                self.queue, self.ended = deque(job for job in self.queue if not job.state.over), False
            if not self.queue:
                yield self._bench.wake
            elif self.queue[0].model == self.model:
                yield from self._batch()
            else:
                yield from self._swap(self.queue[0])

    def _swap(self, job: Job) -> Process:
        for queued in self.queue:
            queued.evict()
        self.model = job.model
        seconds = self._bench.device.load_s(job.kind)
        self._usage.changed(seconds)
        self._usage.switch_s += seconds
        yield seconds

    def _batch(self) -> Process:
        front = self._front()
        prompts = [job for job in front if not job.cached]
        for job in set(self._front_before).difference(front):
            if job.state is State.RUNNING:
                job.evict()
        self._front_before = front
        batch = prompts or front
        for job in batch:
            job.state = State.RUNNING
        device, kind = self._bench.device, batch[0].kind
        if prompts:
            seconds = device.prefill_s(kind, [job.context for job in batch])
            self._usage.prefill_s += seconds
        else:
            seconds = device.step_s(kind, contexts(batch), len(batch))
            self._usage.decode_s += seconds
        yield seconds
        token_of_each([job for job in batch if job.state is not State.FAILED], self._bench.clock.now)
        self.ended = self.ended or any(job.state.over for job in batch)
        self.last_batch_s = self._bench.clock.now

    def _front(self) -> list[Job]:
        """The jobs of the resident model at the front of the queue, as far as their KV fits."""
        front: list[Job] = []
        room = self._bench.device.kv_tokens(self.queue[0].kind)
        for job in self.queue:
            room -= job.context
            if job.model != self.model or len(front) >= _MOST_BATCH or (room < 0 and front):
                break
            front.append(job)
        return front


class SlotPool:
    """Assigns arrivals to workers; `plus` sorts every queue again by remaining work."""

    def __init__(self, bench: Bench, count: int, plus: bool) -> None:
        self._bench = bench
        self._plus = plus
        self._open: list[Job] = []
        self.workers = [SlotWorker(bench) for _ in range(count)]

    def arrive(self, job: Job) -> None:
        """Drop requests that waited too long, place the new one, wake all waiting ones."""
        now = self._bench.clock.now
        for waiting in self._open:
            if now - waiting.arrival_s <= PATIENCE_S:
                break  # they are in the order in which they came
            if waiting.done == 0:
                waiting.state = State.FAILED
                for worker in self.workers:
                    worker.ended = True
        self._open = [j for j in self._open if not j.state.over]
        self._open.append(job)
        if self._plus:
            self._assign_and_sort(job)
        else:
            self._worker_for(job).queue.append(job)
        self._bench.wake_all()

    def _worker_for(self, job: Job) -> SlotWorker:
        """A worker with a free slot of the model; else the least recently used worker, which switches to the model."""
        counts = [self._tail(worker) for worker in self.workers]
        serving = [
            (worker, count) for worker, (model, count) in zip(self.workers, counts, strict=True) if model == job.model
        ]
        if not any(count < SLOTS for _, count in serving):
            other = self._least_recent(job, counts)
            if other is not None:
                return other
        return min(serving, key=lambda pair: pair[1])[0]

    def _least_recent(self, job: Job, counts: list[tuple[int | None, int]]) -> SlotWorker | None:
        candidates = [w for w, (model, _) in zip(self.workers, counts, strict=True) if model != job.model]
        fresh = next((w for w, (model, _) in zip(self.workers, counts, strict=True) if model is None), None)
        return fresh or min(candidates, key=lambda w: w.last_batch_s, default=None)

    def _tail(self, worker: SlotWorker) -> tuple[int | None, int]:
        """The model at the end of the queue, and the length of its run there."""
        if not worker.queue:
            return worker.model, 0
        model, count = worker.queue[-1].model, 0
        for job in reversed(worker.queue):
            if job.model != model:
                break
            count += 1
        return model, count

    def _assign_and_sort(self, new: Job) -> None:
        queues = [self._grouped(worker) for worker in self.workers]
        room = (g for groups in queues for g in groups if g[0].model == new.model and len(g) < SLOTS)
        group = next(room, None)
        if group is not None:
            group.append(new)
        else:
            min(queues, key=len).append([new])
        for worker, groups in zip(self.workers, queues, strict=True):
            groups.sort(key=self._left_s)
            worker.queue = deque(job for group in groups for job in group)

    def _grouped(self, worker: SlotWorker) -> list[list[Job]]:
        groups: list[list[Job]] = []
        last: dict[int, list[Job]] = {}  # by model: those before it are full
        for job in worker.queue:
            group = last.get(job.model)
            if group is None or len(group) == SLOTS:
                group = last[job.model] = []
                groups.append(group)
            group.append(job)
        return groups

    def _left_s(self, group: list[Job]) -> float:
        """Seconds left: those of the prompts when there are any, else of the first job's answer."""
        first, k = group[0], group[0].kind.latency
        prompts = [j.input_tokens for j in group if not j.cached and j.state is not State.FAILED]
        if prompts:
            return k.p0 + k.p1 * sum(prompts) + k.p2 * sum(n * n for n in prompts)
        total_tokens = first.input_tokens + first.length
        step_s = k.a + k.b * ((first.context + total_tokens) // 2) + k.c
        return step_s * (total_tokens - first.context)
