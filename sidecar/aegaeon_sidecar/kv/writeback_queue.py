"""Chains of cached blocks whose sequences have left the device: they wait to be copied to the host (writeback.py)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.memory.prefix import Name

MOST_NAMES = 1 << 17
"""of blocks that wait: 6 MB; the chains that wait longest are dropped, and are lost when they are evicted"""


@dataclass(slots=True)
class Chain:
    """Names of a sequence's blocks that were on the device when it left; those before `at` have been seen to."""

    kv_shape: str
    names: list[Name]
    at: int = 0


class WritebackQueue:
    """`chains` of sequences that have left the device, the one that left first at the front. Guarded by `monitor`."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self.chains: deque[Chain] = deque()
        self._names = 0
        self.onto: tuple[str, Blocks] | None = None  # KV shape and host blocks of the copy under way: of no sequence

    def add(self, kv_shape: str, names: list[Name]) -> None:
        """A sequence whose full blocks have these names has left: wakes the lane that copies them."""
        if not names:
            return
        self.chains.append(Chain(kv_shape, names))
        self._names += len(names)
        while self._names > MOST_NAMES and len(self.chains) > 1:
            self.drop()
        self._monitor.queued[Lane.KV_OUT].notify()

    def first(self) -> Chain:
        """The chain at the front."""
        return self.chains[0]

    def drop(self) -> None:
        """Take the front chain out."""
        self._names -= len(self.chains.popleft().names)
