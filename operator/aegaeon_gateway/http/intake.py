"""How much of requests a gateway holds at a time: bodies while they are read and worked on, prompts of open requests.

Small requests are not counted, so that large ones never keep them out; their number is bounded. Where there are
tenants, each of them has half at most, and all clients without a key together as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from aegaeon_gateway.errors import BodyTooLargeError, overloaded

UNCOUNTED_BYTES = 64 << 10
"""of every request; what is beyond counts"""
TOKEN_BYTES = 8
"""of a token of a prompt: in the request itself, and in its message to the scheduler"""


class Intake:
    """Owner of both budgets. `requests`: open at a time; `memory_bytes`: of all of them."""

    def __init__(self, requests: int, memory_bytes: int) -> None:
        self._requests = requests
        self._memory_bytes = memory_bytes
        self._open: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @contextmanager
    def request(self, owner: str, *, shared: bool) -> Iterator[Holding]:
        """Around a request. `shared`: other owners need room too. Raises UnavailableError."""
        if not _has_room(self._open, owner, 1, self._requests, shared=shared):
            raise overloaded("Too many requests are open; try again.")
        self._open[owner] += 1
        holding = Holding(self, owner, shared=shared)
        try:
            yield holding
        finally:
            holding.hold(0)
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]

    def take(self, owner: str, more: int, *, shared: bool) -> None:
        """Count bytes (fewer when negative). Raises UnavailableError."""
        if more > 0 and not _has_room(self._bytes, owner, more, self._memory_bytes, shared=shared):
            raise overloaded("Too much of large requests is in memory; try again.")
        self._bytes[owner] += more
        if not self._bytes[owner]:
            del self._bytes[owner]

    def check(self) -> None:
        """Raises AssertionError unless nothing is held."""
        assert not self._open, f"open requests are left: {self._open}"
        assert not self._bytes, f"bytes are left: {self._bytes}"


class Holding:
    """The memory that one request holds."""

    def __init__(self, intake: Intake, owner: str, *, shared: bool) -> None:
        self._intake = intake
        self._owner = owner
        self._shared = shared
        self._counted = 0
        self.size = 0
        """bytes that it holds"""

    def hold(self, size: int) -> None:
        """The request holds `size` bytes from here on. Raises UnavailableError when there is no room for more."""
        counted = max(size - UNCOUNTED_BYTES, 0)
        if counted != self._counted:
            self._intake.take(self._owner, counted - self._counted, shared=self._shared)
            self._counted = counted
        self.size = size


async def read_body(http: web.Request, most_bytes: int, holding: Holding) -> bytearray:
    """Count, then keep. Raises BodyTooLargeError, UnavailableError."""
    if (http.content_length or 0) > most_bytes:
        raise BodyTooLargeError(most_bytes)
    body = bytearray()
    async for piece in http.content.iter_any():
        if len(body) + len(piece) > most_bytes:
            raise BodyTooLargeError(most_bytes)
        holding.hold(len(body) + len(piece))
        body += piece
    return body


def _has_room(held: Counter[str], owner: str, more: int, most: int, *, shared: bool) -> bool:
    """True when an owner may hold `more` of `most`. Where it is shared, each new owner finds room, however many came
    before: one may hold as much as would be left beside it, divided among the owners there are and one to come."""
    elsewhere = held.total() - held[owner]
    free = most - elsewhere
    if not shared:
        return held[owner] + more <= free
    owners = len(held.keys() - {owner}) + 1
    return held[owner] + more <= -(-free // (owners + 1))
