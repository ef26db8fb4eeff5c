"""How long a request may take: every wait for a server has an end, and many bytes must come at a minimum rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aegaeon_proto.outbound.errors import GivenUpError, RefusedError, UnreachableError

_POLL_S = 0.5  # so long a wait goes on before it is looked whether anybody still wants the answer
_OVERHEAD_BYTES = 8 << 20  # of headers and of chunks' frames, beside four times what they frame


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one fetch."""

    min_bytes_per_s: float = 65536.0
    """slower than this over a window, a source of weights is given up"""
    window_s: float = 60.0
    """seconds of waiting for the source over which its rate is measured"""
    answer_s: float = 30.0
    """until an answer has begun: name, connection, TLS and headers; and the longest silence within it"""
    small_s: float = 120.0
    """for the whole of an answer that is read at once"""


class Watch:
    """The time of one fetch, over all its requests. Only waiting for the source counts, not what is done with bytes."""

    def __init__(
        self, limits: Limits, cancelled: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self._cancelled = cancelled
        self._clock = clock
        self._ends: list[tuple[float, str]] = []
        self._waited_s = 0.0
        self._came_bytes = 0
        self.paced = False

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """All waits inside end after `seconds`."""
        end = (self._clock() + seconds, f"{what} took longer than {seconds:g} s")
        self._ends.append(end)
        try:
            yield
        finally:
            self._ends.remove(end)

    def patience_s(self, at_most_s: float = _POLL_S) -> float:
        """How long the next wait may be. Raises GivenUpError, RefusedError (too slow) and UnreachableError."""
        if self._cancelled():
            raise GivenUpError("is not wanted any more")
        return min(self.left_s(), at_most_s)

    def left_s(self) -> float:
        """Seconds until the first end. Raises UnreachableError when it is over."""
        if not self._ends:
            return self.limits.answer_s
        end_s, said = min(self._ends)
        left_s = end_s - self._clock()
        if left_s <= 0:
            raise UnreachableError(said)
        return left_s

    def waited(self, seconds: float, nbytes: int) -> None:
        """So long was waited, and so many bytes came of it. Raises RefusedError."""
        if not self.paced:
            return
        self._waited_s += seconds
        self._came_bytes += nbytes
        if self._waited_s < self.limits.window_s:
            return
        if self._came_bytes < self.limits.min_bytes_per_s * self._waited_s:
            raise RefusedError(
                f"sends {self._came_bytes / self._waited_s:.0f} bytes per second over {self._waited_s:.0f} s; "
                f"{self.limits.min_bytes_per_s:.0f} are the least"
            )
        self._waited_s, self._came_bytes = 0.0, 0


@dataclass(slots=True)
class Overhead:
    """Bytes of one connection against those that they bring."""

    wire_bytes: int = 0
    body_bytes: int = 0

    def check(self) -> None:
        """Raises RefusedError for a server that sends frames without end and nothing in them."""
        if self.wire_bytes > _OVERHEAD_BYTES + 4 * self.body_bytes:
            raise RefusedError("sends far more than the file: headers or frames without end")
