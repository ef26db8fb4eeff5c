"""Time limits of a request: every wait for a server ends, and large answers must arrive at a minimum rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aegaeon_proto.outbound.errors import GivenUpError, RefusedError, UnreachableError

_POLL_S = 0.5  # a wait is interrupted this often to check for cancellation
_OVERHEAD_BYTES = 8 << 20  # of headers and of chunks' frames, beside four times what they frame


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one fetch."""

    min_bytes_per_s: float = 65536.0
    """a source of weights that is slower than this over a window is abandoned"""
    window_s: float = 60.0
    """seconds of waiting for the source over which its rate is measured"""
    answer_s: float = 30.0
    """until an answer has begun: name, connection, TLS and headers; and the longest silence within it"""
    small_s: float = 120.0
    """for an answer that is read at once"""


class Watch:
    """Time spent in one fetch, over all its requests. Only waiting for the source counts, not processing its bytes."""

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
        """The longest next wait. Raises GivenUpError, RefusedError (too slow) and UnreachableError."""
        if self._cancelled():
            raise GivenUpError("was cancelled")
        return min(self.left_s(), at_most_s)

    def left_s(self) -> float:
        """Seconds until the first limit. Raises UnreachableError after it."""
        if not self._ends:
            return self.limits.answer_s
        end_s, message = min(self._ends)
        left_s = end_s - self._clock()
        if left_s <= 0:
            raise UnreachableError(message)
        return left_s

    def waited(self, seconds: float, nbytes: int) -> None:
        """Count seconds of waiting and the bytes they brought. Raises RefusedError when the rate is too low."""
        if not self.paced:
            return
        self._waited_s += seconds
        self._came_bytes += nbytes
        if self._waited_s < self.limits.window_s:
            return
        if self._came_bytes < self.limits.min_bytes_per_s * self._waited_s:
            raise RefusedError(
                f"sends {self._came_bytes / self._waited_s:.0f} bytes per second over {self._waited_s:.0f} s; "
                f"the minimum is {self.limits.min_bytes_per_s:.0f}"
            )
        self._waited_s, self._came_bytes = 0.0, 0


@dataclass(slots=True)
class Overhead:
    """Bytes of one connection compared with the body bytes that they carry."""

    wire_bytes: int = 0
    body_bytes: int = 0

    def check(self) -> None:
        """Raises RefusedError for a server that sends endless framing without content."""
        if self.wire_bytes > _OVERHEAD_BYTES + 4 * self.body_bytes:
            raise RefusedError("sends endless headers or frames without content")
