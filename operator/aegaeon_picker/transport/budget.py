"""Streams and buffered bytes of all connections of a port, with the choice of the stream to drop at the limit."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from aegaeon_picker.transport.limits import Limits


class Holder(Protocol):
    """The streams of a connection, whose bytes the budget counts."""

    def drop_largest(self) -> bool:
        """End the stream with the most buffered bytes; False if none has any."""


class Budget:
    """The budget shared by the connections of a port."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.streams = 0
        self.bytes = 0
        self._held: Counter[Holder] = Counter()

    def hold(self, holder: Holder, change: int) -> None:
        """Add `change` bytes of `holder`. Above a limit the largest streams end, possibly the caller's."""
        self.bytes += change
        self._held[holder] += change
        if change <= 0:
            return
        while self._held[holder] > self.limits.connection_bytes and holder.drop_largest():
            pass
        while self.bytes > self.limits.buffered_bytes and max(self._held, key=self._held.__getitem__).drop_largest():
            pass

    def leave(self, holder: Holder) -> None:
        """Remove a closed connection."""
        self.bytes -= self._held.pop(holder, 0)

    def check(self) -> None:
        """Check that the sum equals its parts. Raises AssertionError."""
        assert self.bytes == sum(self._held.values()) >= 0 <= self.streams
