"""Responses kept in this process, where one gateway serves."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from aegaeon_gateway.conversations.model import Bounds, Kept

_ENTRY_BYTES = 512
"""of an entry beside its content, roughly"""


@dataclass(frozen=True, slots=True)
class _Entry:
    expires: float
    kept: Kept

    @property
    def size(self) -> int:
        return self.kept.size + _ENTRY_BYTES


class MemoryConversations:
    """Implements Conversations. `memory_bytes`: of all tenants; beyond it the oldest of the largest tenant goes."""

    def __init__(self, bounds: Bounds, memory_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._memory_bytes = memory_bytes
        self._clock = clock
        self._entries: defaultdict[str, dict[str, _Entry]] = defaultdict(dict)  # by tenant, the oldest first
        self._order: dict[tuple[str, str], None] = {}  # of all tenants, the oldest first
        self._bytes: Counter[str] = Counter()

    async def put(self, tenant: str, id_: str, kept: Kept) -> bool:
        """See Conversations."""
        self._expire()
        bounds, entry = self._bounds, _Entry(self._clock() + self._bounds.seconds, kept)
        if entry.size > min(bounds.nbytes, self._memory_bytes) or not bounds.count:
            return False
        self._remove(tenant, id_)
        self._entries[tenant][id_] = entry
        self._order[tenant, id_] = None
        self._bytes[tenant] += entry.size
        while self._bytes[tenant] > bounds.nbytes or len(self._entries[tenant]) > bounds.count:
            self._remove_oldest(tenant)
        while self._bytes.total() > self._memory_bytes:
            self._remove_oldest(self._bytes.most_common(1)[0][0])
        return id_ in self._entries.get(tenant, {})

    async def replace(self, tenant: str, id_: str, kept: Kept) -> bool:
        """See Conversations."""
        before = await self.get(tenant, id_)
        return before is not None and before.beat > 0 and await self.put(tenant, id_, kept)

    async def get(self, tenant: str, id_: str) -> Kept | None:
        """See Conversations."""
        self._expire()
        entry = self._entries.get(tenant, {}).get(id_)
        return None if entry is None else entry.kept

    async def delete(self, tenant: str, id_: str) -> bool:
        """See Conversations."""
        self._expire()
        return self._remove(tenant, id_)

    async def close(self) -> None:
        """See Conversations."""

    def check(self) -> None:
        """Raises AssertionError when what is counted is not what is kept."""
        kept = {(tenant, id_) for tenant, entries in self._entries.items() for id_ in entries}
        assert kept == set(self._order), "every response is in the order once"
        sizes = {tenant: sum(entry.size for entry in entries.values()) for tenant, entries in self._entries.items()}
        assert sizes == dict(self._bytes), "bytes are those of what is kept"

    def _expire(self) -> None:
        now = self._clock()
        while self._order:
            tenant, id_ = next(iter(self._order))
            if self._entries[tenant][id_].expires > now:
                return
            self._remove(tenant, id_)

    def _remove_oldest(self, tenant: str) -> None:
        self._remove(tenant, next(iter(self._entries[tenant])))

    def _remove(self, tenant: str, id_: str) -> bool:
        if (entry := self._entries.get(tenant, {}).pop(id_, None)) is None:
            return False
        del self._order[tenant, id_]
        self._bytes[tenant] -= entry.size
        if not self._entries[tenant]:
            del self._entries[tenant], self._bytes[tenant]
        return True
