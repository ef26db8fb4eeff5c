"""Which gateway works on a batch: a lease in the store, whose term rises with each holder.

A holder shows that it lives by a beat that rises. No clocks are compared: a gateway that sees the same beat for
`lease_s` on its own clock takes the batch over, by creating the next term, which of several one can. A holder that
finds a higher term than its own gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from aegaeon_gateway.batches.store import Store
from aegaeon_gateway.errors import GatewayError


class LeaseLostError(GatewayError):
    """Another gateway works on the batch."""


class Held(Struct, frozen=True):
    """A term's object. An empty `holder` has released it."""

    holder: str
    beat: int


@dataclass(frozen=True, slots=True)
class Sight:
    """A lease as another gateway saw it, and since when it looks like that (seconds)."""

    term: int
    held: Held
    since: float


class Lease:
    """Held by this gateway, from `claim` on."""

    def __init__(self, store: Store, prefix: str, term: int, holder: str) -> None:
        self._store = store
        self._prefix = prefix
        self.term = term
        self._holder = holder
        self._beat = 0

    async def renew(self) -> None:
        """Show a sign of life. Raises LeaseLostError."""
        term, _ = await _newest(self._store, self._prefix)
        if term != self.term:
            raise LeaseLostError(f"another gateway holds term {term}")
        self._beat += 1
        await self._store.put(_key(self._prefix, self.term), msgspec.json.encode(Held(self._holder, self._beat)))

    async def release(self) -> None:
        """Another gateway may go on at once."""
        await self._store.put(_key(self._prefix, self.term), msgspec.json.encode(Held("", self._beat)))


class Leases:
    """Claims leases for one gateway. `holder`: unique among those of a pool, but for its former processes."""

    def __init__(self, store: Store, holder: str, lease_s: float, clock: Callable[[], float]) -> None:
        self._store = store
        self._holder = holder
        self._lease_s = lease_s
        self._clock = clock
        self._seen: dict[str, Sight] = {}

    async def claim(self, prefix: str) -> Lease | None:
        """The lease of a batch that no gateway holds; None for one that is held, as far as is known."""
        term, held = await _newest(self._store, prefix)
        if held is not None and not self._is_free(prefix, term, held):
            return None
        if not await self._store.create(_key(prefix, term + 1), msgspec.json.encode(Held(self._holder, 0))):
            return None
        self._seen.pop(prefix, None)
        return Lease(self._store, prefix, term + 1, self._holder)

    def keep_only(self, prefixes: Container[str]) -> None:
        """Forget what was seen of others: batches that are over, whichever gateway ended them."""
        self._seen = {prefix: sight for prefix, sight in self._seen.items() if prefix in prefixes}

    def _is_free(self, prefix: str, term: int, held: Held) -> bool:
        before, now = self._seen.get(prefix), self._clock()
        if before is None or (before.term, before.held) != (term, held):
            before = self._seen[prefix] = Sight(term, held, now)
        return held.holder in ("", self._holder) or now - before.since >= self._lease_s


async def _newest(store: Store, prefix: str) -> tuple[int, Held | None]:
    """The highest term; 0 without any."""
    entries = await store.entries(prefix)
    if not entries:
        return 0, None
    key = entries[-1].key
    data = await store.get(key)
    return int(key.rpartition("/")[2]), None if data is None else msgspec.json.decode(data, type=Held)


def _key(prefix: str, term: int) -> str:
    return f"{prefix}/{term:08d}"
