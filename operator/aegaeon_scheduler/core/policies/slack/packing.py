"""Checks that what is admitted can be spread over the engines: a group runs on one of them, however much time others
have.

It matters where a step takes a good part of TBT, so that an engine has time for one group or two.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapreplace

from aegaeon_scheduler.core.policies.slack.demand import Need


class Packing:
    """The utilization of engines if all groups were placed anew, largest first, each on the least busy (LPT)."""

    def __init__(self) -> None:
        self._needs: list[Need] = []
        self._busy: dict[tuple[int, int], list[float]] = {}  # a heap by level and engines: few pairs are asked for

    def measure(self, needs: Iterable[Need]) -> None:
        """Begin anew with these groups."""
        self._needs = list(needs)
        self._busy = {}

    def least(self, level: int, engines: int) -> float:
        """Returns the load of the least busy engine, by groups of this tier and those above it."""
        return self._heap(level, engines)[0]

    def add(self, need: Need) -> None:
        """One more group runs on the least busy engine, or a group is so much busier."""
        self._needs.append(need)
        for (level, _), heap in self._busy.items():
            if need.level <= level:
                heapreplace(heap, heap[0] + need.util)

    def _heap(self, level: int, engines: int) -> list[float]:
        heap = self._busy.get((level, engines))
        if heap is None:
            heap = self._busy[level, engines] = [0.0] * engines
            for util in sorted((need.util for need in self._needs if need.level <= level), reverse=True):
                heapreplace(heap, heap[0] + util)
        return heap
