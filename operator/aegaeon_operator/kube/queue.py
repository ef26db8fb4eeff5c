"""The work queue of pools: each is reconciled by one worker at a time, and is queued only once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable

from aegaeon_kube.errors import KubeError
from aegaeon_operator.errors import OperatorError
from aegaeon_operator.reconcile.cluster.facts import Key

_log = logging.getLogger(__name__)
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0
# Several objects of a pool change together: the first waits this long for the others.
_GATHER_S = 0.05


class Queue:
    """A queue. `reconcile` returns the seconds until the next reconcile; infinity: not before the pool is added."""

    def __init__(self, reconcile: Callable[[Key], Awaitable[float]], workers: int) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._running: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}

    @property
    def length(self) -> int:
        """Number of pools that wait for a worker."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of pools that are being reconciled."""
        return len(self._running)

    def add(self, keys: Iterable[Key], delay_s: float = _GATHER_S) -> None:
        """Queue pools for a reconcile."""
        for key in keys:
            self._at(key, delay_s)

    async def run(self) -> None:
        """Run the workers until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._workers):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            if key in self._running:
                self._at(key, _GATHER_S)
                continue
            self._running.add(key)
            try:
                again_s = await self._reconcile(key)
                self._failures.pop(key, None)
            except (OperatorError, KubeError) as error:
                again_s = self._backoff(key)
                _log.warning("%s/%s: %s; retry in %g s", key.namespace, key.name, error, again_s)
            except Exception:  # noqa: BLE001 - a bug that one pool shows must not stop the others; logged with its trace
                again_s = self._backoff(key)
                _log.exception("%s/%s: retry in %g s", key.namespace, key.name, again_s)
            finally:
                self._running.discard(key)
            if key not in self._waiting and again_s < math.inf:  # deleted pools must not keep a timer
                self._at(key, again_s)

    def _backoff(self, key: Key) -> float:
        self._failures[key] = self._failures.get(key, 0) + 1
        return float(min(_FIRST_RETRY_S * 2.0 ** (self._failures[key] - 1), _LONGEST_RETRY_S))

    def _at(self, key: Key, delay_s: float) -> None:
        """Schedule a pool; the earliest of several times counts."""
        loop = asyncio.get_running_loop()
        when = loop.time() + delay_s
        timer = self._timers.get(key)
        if key in self._waiting or (timer and timer.when() <= when):
            return
        if timer:
            timer.cancel()
        self._timers[key] = loop.call_at(when, self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        if key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)
