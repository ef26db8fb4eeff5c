"""Which prompts of an instance run first: as many as can have their first token in time.

The algorithm of Moore and Hodgson (1968), which no other order beats in the number of jobs that are in time.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Job(NamedTuple, Generic[T]):
    """A prompt that takes `seconds` and is due at `deadline`, on the clock of `now`."""

    what: T
    deadline: float
    seconds: float


def moore_hodgson(jobs: Iterable[Job[T]], now: float) -> tuple[list[Job[T]], list[Job[T]]]:
    """The jobs that are in time when they run in this order, as many as possible, and the others; by deadline."""
    order = sorted(jobs, key=lambda job: job.deadline)
    kept: list[tuple[float, int]] = []  # longest first
    dropped: set[int] = set()
    end = now
    for index, job in enumerate(order):
        heappush(kept, (-job.seconds, index))
        end += job.seconds
        if end > job.deadline:
            seconds, longest = heappop(kept)
            end += seconds
            dropped.add(longest)
    numbered = list(enumerate(order))
    return [job for i, job in numbered if i not in dropped], [job for i, job in numbered if i in dropped]
