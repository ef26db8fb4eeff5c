"""Who is next: owners in turn, none of them nor any model with all workers at once, and no queue without a bound."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from aegaeon_gateway.errors import QueueFullError

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Share:
    """Whose work it is, and for which model."""

    owner: str
    model: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """`running`: of one owner, or of one model, at a time; `waiting`: in all, `waiting_each`: of one owner."""

    running: int
    waiting: int
    waiting_each: int


class FairQueue(Generic[ItemT]):
    """Round robin over owners, in order of arrival within one."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._waiting: dict[str, deque[tuple[Share, ItemT]]] = {}  # owners in the order of their turns
        self._count = 0
        self._owners: Counter[str] = Counter()
        self._models: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count

    @property
    def running(self) -> int:
        """Jobs that `next` returned and that have not `ended`."""
        return self._owners.total()

    def put(self, share: Share, item: ItemT) -> None:
        """Raises QueueFullError."""
        line = self._waiting.get(share.owner)
        if self._count >= self._bounds.waiting or (line and len(line) >= self._bounds.waiting_each):
            raise QueueFullError
        self._waiting.setdefault(share.owner, deque()).append((share, item))
        self._count += 1

    def next(self) -> tuple[Share, ItemT] | None:
        """The first owner in turn whose oldest item may run; it counts as running until `ended`."""
        for owner, line in self._waiting.items():
            if self._may_run(line[0][0]):
                return self._start(owner)
        return None

    def ended(self, share: Share) -> None:
        """End a job that `next` returned."""
        for counter, name in ((self._owners, share.owner), (self._models, share.model)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]

    def discard(self, share: Share, item: ItemT) -> bool:
        """Forget what waits; False when it does not (any more)."""
        line = self._waiting.get(share.owner)
        if line is None or (share, item) not in line:
            return False
        line.remove((share, item))
        self._count -= 1
        if not line:
            del self._waiting[share.owner]
        return True

    def check(self) -> None:
        """Raises AssertionError when counts and queues differ."""
        assert self._count == sum(map(len, self._waiting.values())), "count of what waits"
        assert all(self._waiting.values()), "an owner without anything waits"
        assert sum(self._owners.values()) == sum(self._models.values()), "owners and models run the same jobs"

    def _may_run(self, share: Share) -> bool:
        return max(self._owners[share.owner], self._models[share.model]) < self._bounds.running

    def _start(self, owner: str) -> tuple[Share, ItemT]:
        line = self._waiting.pop(owner)
        share, item = line.popleft()
        if line:
            self._waiting[owner] = line  # behind all others
        self._count -= 1
        self._owners[share.owner] += 1
        self._models[share.model] += 1
        return share, item
