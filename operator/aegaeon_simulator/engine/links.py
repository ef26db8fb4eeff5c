"""The link between host and device. A device copies sequentially; the devices of a node share its memory bandwidth."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from aegaeon_simulator.clock import Clock

_DONE_BYTES = 1.0  # less than this is left over by rounding


class _Flow:
    """A copy under way: bytes left, the most its link gives, what to do then."""

    __slots__ = ("done", "left", "most", "rate")

    def __init__(self, nbytes: float, most: float, done: Callable[[], None]) -> None:
        self.left = nbytes
        self.most = most
        self.rate = 0.0
        self.done = done


class Node:
    """Host memory that gives `bytes_per_s` to all copies together, in equal shares up to what each link takes."""

    def __init__(self, clock: Clock, bytes_per_s: float) -> None:
        self._clock = clock
        self._total = bytes_per_s
        self._flows: list[_Flow] = []
        self._since = 0.0
        self._turn = 0

    def copy(self, nbytes: float, most: float, done: Callable[[], None]) -> None:
        """Begin a copy at once."""
        self._advance()
        self._flows.append(_Flow(nbytes, most, done))
        self._share()

    def _advance(self) -> None:
        passed, self._since = self._clock.now - self._since, self._clock.now
        for flow in self._flows:
            flow.left -= flow.rate * passed

    def _share(self) -> None:
        left, count = self._total, len(self._flows)
        for flow in sorted(self._flows, key=lambda f: f.most):
            flow.rate = min(flow.most, left / count)
            left -= flow.rate
            count -= 1
        self._turn += 1
        turn = self._turn
        if self._flows:
            soonest = min(max(0.0, f.left) / f.rate for f in self._flows)
            self._clock.at(self._clock.now + soonest, lambda: self._due() if turn == self._turn else None)

    def _due(self) -> None:
        self._advance()
        over = [f for f in self._flows if f.left <= _DONE_BYTES]
        self._flows = [f for f in self._flows if f.left > _DONE_BYTES]
        self._share()
        for flow in over:
            flow.done()


class Link:
    """A device's link. With `serial` copies run one after the other, else all at once; `node` may slow them down."""

    def __init__(self, clock: Clock, serial: bool, node: Node | None) -> None:
        self._clock = clock
        self._serial = serial
        self._node = node
        self._busy = False
        self._queue: deque[tuple[float, float, Callable[[], None]]] = deque()

    def copy(self, nbytes: float, bytes_per_s: float, done: Callable[[], None]) -> None:
        """Copy so many bytes; `done` is called at the end."""
        if self._serial and self._busy:
            self._queue.append((nbytes, bytes_per_s, done))
        else:
            self._begin(nbytes, bytes_per_s, done)

    def _begin(self, nbytes: float, bytes_per_s: float, done: Callable[[], None]) -> None:
        self._busy = True

        def over() -> None:
            self._busy = False
            if self._queue:
                self._begin(*self._queue.popleft())
            done()

        if self._node is None:
            self._clock.at(self._clock.now + nbytes / bytes_per_s, over)
        else:
            self._node.copy(nbytes, bytes_per_s, over)
