"""Whose turn it is on the event loop: every address as often as any other, and in it every connection.

A read may hold work for a hundred milliseconds. It is done at once while there is little; what exceeds that waits in a
queue that gives back the loop after each few milliseconds, so that no peer adds more than that to another's wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from aegaeon_picker.transport.limits import Clock

_SLICE_S = 0.001  # of one connection
_LOOP_S = 0.003  # of all, until others of the loop have their turn
_LITTLE_S = 0.0005  # spent at once, after which it is asked when the loop comes round


class Worker(Protocol):
    """A connection."""

    address: str

    def work(self, until: float) -> bool:
        """Work to that time; whether there is more to do. Never raises."""


class Turns:
    """Of one port. `call_soon` is the event loop's."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], clock: Clock) -> None:
        self._call_soon, self._clock = call_soon, clock
        self._waiting: dict[str, deque[Worker]] = {}  # by address, in the order of their turns
        self._queued: set[Worker] = set()
        self._spent_s = 0.0  # at once, in this round of the loop or in several short ones
        self._to_forget = False

    def offer(self, worker: Worker) -> bool:
        """There is something to do: it is done now, or queued. True when it is queued."""
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
        """The loop has come round."""
        self._spent_s, self._to_forget = 0.0, False

    def _queue(self, worker: Worker) -> None:
        if not self._queued:
            self._call_soon(self._run)
        self._queued.add(worker)
        self._waiting.setdefault(worker.address, deque()).append(worker)

    def _run(self) -> None:
        try:
            self._work()
        finally:  # also behind a defect of one connection
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
