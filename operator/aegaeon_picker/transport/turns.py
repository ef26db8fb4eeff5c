"""Fair sharing of the event loop: round-robin over addresses, and over the connections of an address.

A read may contain work for a hundred milliseconds. A little of it is done at once; the rest waits in a queue that
yields to the loop every few milliseconds, so that no peer delays another by more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from aegaeon_picker.transport.limits import Clock

_SLICE_S = 0.001  # of one connection
_LOOP_S = 0.003  # of all connections, until the loop runs other tasks
_LITTLE_S = 0.0005  # spent at once, after which the sum is reset in the next iteration of the loop


class Worker(Protocol):
    """A connection with work."""

    address: str

    def work(self, until: float) -> bool:
        """Work until `until`; return whether there is more to do. Never raises."""


class Turns:
    """The turns of a port's connections. `call_soon` is the event loop's."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Clock) -> None:
        self._call_soon, self._clock = call_soon, clock
        self._waiting: dict[str, deque[Worker]] = {}  # by address, in the order of their turns
        self._queued: set[Worker] = set()
        self._spent_s = 0.0  # at once, in this iteration of the loop or in several short ones
        self._to_forget = False

    def offer(self, worker: Worker) -> bool:
        """Do a worker's work now, or queue it; return whether it is queued."""
        if worker in self._queued:
            return True
        if self._queued or self._spent_s > _LOOP_S:
            self._queue(worker)
            return True
        now = self._clock()
        more = worker.work(now + _SLICE_S)
        self._spent_s += self._clock() - now
        if self._spent_s > _LITTLE_S and not self._to_forget:
            self._to_forget = True
            self._call_soon(self._forget)
        if more:
            self._queue(worker)
        return more

    def _forget(self) -> None:
        """Reset the spent time in the next iteration of the loop."""
        self._spent_s, self._to_forget = 0.0, False

    def _queue(self, worker: Worker) -> None:
        if not self._queued:
            self._call_soon(self._run)
        self._queued.add(worker)
        self._waiting.setdefault(worker.address, deque()).append(worker)

    def _run(self) -> None:
        try:
            self._work()
        finally:  # also after an exception of a connection
            if self._queued:
                self._call_soon(self._run)

    def _work(self) -> None:
        until = self._clock() + _LOOP_S
        while self._queued and (now := self._clock()) < until:
            address, workers = next(iter(self._waiting.items()))
            worker = workers.popleft()
            self._queued.discard(worker)
            del self._waiting[address]
            if workers:
                self._waiting[address] = workers  # behind the other addresses
            if worker.work(now + _SLICE_S):
                self._queued.add(worker)
                self._waiting.setdefault(address, deque()).append(worker)
