"""What all connections of a port hold: streams and buffered bytes, and which stream is dropped at the limit."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from aegaeon_picker.transport.limits import Limits


class Holder(Protocol):
    """The streams of a connection, whose bytes are accounted for here."""

    def drop_largest(self) -> bool:
        """End the stream that holds most; False when none holds anything."""


class Budget:
    """Shared by the connections of a port."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.streams = 0
        self.bytes = 0
        self._held: Counter[Holder] = Counter()

    def hold(self, holder: Holder, change: int) -> None:
        """`holder` has so many bytes more. Where that is too many, the largest streams end: at worst the caller's."""
        self.bytes += change
        self._held[holder] += change
        if change <= 0:
            return
        while self._held[holder] > self.limits.connection_bytes and holder.drop_largest():
            pass
        while self.bytes > self.limits.buffered_bytes and max(self._held, key=self._held.__getitem__).drop_largest():
            pass

    def leave(self, holder: Holder) -> None:
        """It is closed."""
        self.bytes -= self._held.pop(holder, 0)

    def check(self) -> None:
        """Raises AssertionError when the sum is not that of its parts."""
        assert self.bytes == sum(self._held.values()) >= 0 <= self.streams
