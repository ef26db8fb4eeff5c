"""Workers of one kind and the jobs that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aegaeon_gateway.errors import WireError
from aegaeon_gateway.workers.client import Worker
from aegaeon_gateway.workers.fair import Bounds, FairQueue, Share
from aegaeon_gateway.workers.wire import Exceeded, Job, Limit, Message, Peek, Reply, Spawn

Spawner = Callable[[Spawn], Worker]


@dataclass(frozen=True, slots=True)
class LaneConfig:
    """`workers`: processes at most. `wall_s`: a job that takes longer is given up, whatever it waits for.

    `once`: a worker ends after one job; `low`: it has the lowest priority. `waiting`: jobs in all, `waiting_each`: of
    one owner.
    """

    workers: int
    limit: Limit
    wall_s: float
    once: bool
    low: bool
    waiting: int
    waiting_each: int

    @property
    def spawn(self) -> Spawn:
        return Spawn(self.limit, once=self.once, low=self.low)

    @property
    def bounds(self) -> Bounds:
        return Bounds(max(1, self.workers - 1), self.waiting, self.waiting_each)


@dataclass(eq=False, slots=True)
class _Waiting:
    message: Job | Peek
    body: bytes | bytearray
    answer: asyncio.Future[tuple[Reply, bytes]]
    task: asyncio.Task[tuple[Reply, bytes]] | None = field(default=None)


class Lane:
    """Owner of its workers. `spawn` forks one, `generation` says which workers know all models."""

    def __init__(self, config: LaneConfig, spawn: Spawner, generation: Callable[[], int]) -> None:
        self._config = config
        self._spawn = spawn
        self._generation = generation
        self._idle: list[Worker] = []
        self._queue: FairQueue[_Waiting] = FairQueue(config.bounds)
        self._running: set[asyncio.Task[tuple[Reply, bytes]]] = set()

    async def do(self, share: Share, message: Job | Peek, body: bytes | bytearray) -> tuple[Reply, bytes]:
        """The worker's reply; Exceeded also for one that died of it.

        Raises QueueFullError, TimeoutError, and WireError when there is no worker to be had.
        """
        waiting = _Waiting(message, body, asyncio.get_running_loop().create_future())
        self._queue.put(share, waiting)
        self._dispatch()
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            if not self._queue.discard(share, waiting) and waiting.task is not None and self._config.once:
                waiting.task.cancel()  # others' workers are worth more than the rest of a short job
            raise

    def refresh(self) -> None:
        """Idle workers of older generations end."""
        old = [worker for worker in self._idle if worker.generation != self._generation()]
        self._idle = [worker for worker in self._idle if worker.generation == self._generation()]
        for worker in old:
            worker.close()

    def check(self) -> None:
        """Raises AssertionError when counts differ."""
        self._queue.check()
        assert self._queue.running == len(self._running), "jobs that run are counted once each"

    async def stop(self) -> None:
        """End every worker, whatever it does."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for worker in self._idle:
            worker.close()
        self._idle.clear()

    def _dispatch(self) -> None:
        while len(self._running) < self._config.workers and (due := self._queue.next()) is not None:
            share, waiting = due
            waiting.task = asyncio.create_task(self._with_worker(waiting.message, waiting.body))
            self._running.add(waiting.task)
            waiting.task.add_done_callback(partial(self._ran, share, waiting))

    def _ran(self, share: Share, waiting: _Waiting, task: asyncio.Task[tuple[Reply, bytes]]) -> None:
        """Not a `finally` of the task: one that is cancelled before its first step never gets there."""
        self._queue.ended(share)
        self._running.discard(task)
        if task.cancelled():
            waiting.answer.cancel()
        elif waiting.answer.done():
            task.exception()  # its client has left, so it is looked at here
        elif (error := task.exception()) is not None:
            waiting.answer.set_exception(error)
        else:
            waiting.answer.set_result(task.result())
        self._dispatch()

    async def _with_worker(self, message: Message, body: bytes | bytearray) -> tuple[Reply, bytes]:
        worker = self._idle.pop() if self._idle else self._spawn(self._config.spawn)
        healthy = False
        try:
            await worker.ready()
            try:
                async with asyncio.timeout(self._config.wall_s):
                    reply, tail = await worker.do(message, body)
            except WireError:
                return Exceeded(""), b""
            healthy = not isinstance(reply, Exceeded) and not self._config.once
            return reply, tail
        finally:
            self._release(worker, healthy=healthy)

    def _release(self, worker: Worker, *, healthy: bool) -> None:
        if healthy and worker.generation == self._generation():
            self._idle.append(worker)
        elif healthy:
            worker.close()
        else:
            worker.kill()
