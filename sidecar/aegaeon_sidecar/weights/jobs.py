"""The queue of a fetcher's thread: many models that come at once delay no others."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from queue import PriorityQueue

Job = Callable[[], None]
_PREPARE, _PROVE, _END = range(3)


class Jobs:
    """First those of models that came with few others, proofs once nothing else is left, and in order of arrival where
    these are equal. Thread-safe."""

    def __init__(self) -> None:
        self._queue: PriorityQueue[tuple[int, int, int, Job | None]] = PriorityQueue()
        self._numbers = count()

    def put(self, job: Job, together: int = 1) -> None:
        """`together`: as many models came at once with the one that it is about."""
        self._put(_PREPARE, together, job)

    def prove(self, job: Job, together: int) -> None:
        """The same for a model that has to be proved before it is served."""
        self._put(_PROVE, together, job)

    def end(self) -> None:
        """Add the end marker after all queued jobs."""
        self._put(_END, 0, None)

    def get(self) -> Job | None:
        """Waits for it; None: the end."""
        return self._queue.get()[-1]

    def _put(self, kind: int, together: int, job: Job | None) -> None:
        self._queue.put((kind, together, next(self._numbers), job))
