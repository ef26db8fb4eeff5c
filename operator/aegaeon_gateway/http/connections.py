"""How many connections there are, by address and in all, and what incomplete bodies hold of the memory.

Connections without a complete request are evicted first: at a limit the one that has waited longest for its client is
closed, so that silent connections cannot keep others out.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from asyncio.constants import ACCEPT_RETRY_DELAY
from collections import Counter
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from aiohttp import web

from aegaeon_gateway.config import HttpLimits
from aegaeon_gateway.errors import ApiError, ConnectionsError, overloaded
from aegaeon_gateway.http.connection import Connection
from aegaeon_gateway.http.refusals import Refusals
from aegaeon_gateway.metrics import Metrics

log = logging.getLogger(__name__)

SCAN_S = 0.1  # between two searches for connections to close, when there are too many
SWEPT_AT_ONCE = 64  # to end one that is overdue takes 0.1 ms, and all may be at once
ACCEPTED_AT_ONCE = 16  # before others have their turn, and before one of them is counted
RESERVED_FILES = 128  # descriptors that are not clients' connections, or of clients that are not counted yet
_NO_DESCRIPTOR = "socket.accept() out of system resource"  # asyncio's words: then it accepts nothing for a second
_LOGGED_EVERY_S = 60.0


class Connections:
    """All connections of a gateway. Owner of the counts; `sweep` ends those that are overdue."""

    def __init__(self, limits: HttpLimits, metrics: Metrics, refusals: Refusals) -> None:
        self.limits = limits
        self.metrics = metrics
        self.refusals = refusals
        self.total = _within_descriptors(limits.connections)
        self._proxies = [ipaddress.ip_network(network) for network in limits.trusted_proxies]
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._incomplete: list[Connection] = []  # the one that waits longest last
        self._scanned_at = float("-inf")
        self._bodies_bytes = 0
        self._no_descriptor_at = self._logged_at = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def attach(self, app: web.Application) -> None:
        """Called for every answer that begins."""
        app.on_response_prepare.append(_begin)

    def make(self, server: web.Server) -> Connection:
        """A protocol for asyncio's create_server."""
        return Connection(self, server)

    def hold(self, body_bytes: int) -> None:
        """Count bytes of incomplete bodies (negative: not any more); at the limit the largest body is refused."""
        self._bodies_bytes += body_bytes
        if self._bodies_bytes > self.limits.bodies_bytes:
            largest = max(self._open, key=lambda connection: connection.body_bytes)
            largest.refuse_body("bodies", overloaded("The gateway is receiving too much at once; try again."))

    def enter(self, connection: Connection, now: float) -> ApiError | None:
        """Count a connection; an error: there is no room for it, even after idle ones are closed."""
        address = connection.address
        if address and self._by_address[address] >= self.limits.connections_per_address:
            if not self._evict(now, address):
                return self._turn_away(address, "too_many_of_address", ConnectionsError())
        elif len(self._open) >= self.total and not self._evict(now):
            full = overloaded("The gateway has as many connections as it takes; try again.")
            return self._turn_away(address, "too_many", full)
        self._open.add(connection)
        self._by_address[address] += 1
        self.metrics.connections.set(len(self._open))
        return None

    def _turn_away(self, address: str, reason: str, error: ApiError) -> ApiError:
        self.metrics.connection_ended(reason)
        self.refusals.refused(error, endpoint="connection", address=address)
        return error

    def leave(self, connection: Connection) -> None:
        """Uncount a connection that was let in."""
        self._open.remove(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]
        self.metrics.connections.set(len(self._open))

    def trusted(self, address: IPv4Address | IPv6Address) -> bool:
        """A proxy in front of this gateway, whose address says nothing about its clients."""
        return any(address in network for network in self._proxies)

    def failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio's handler of errors that are no caller's. Where no descriptor is left for a connection, which it says
        for each that waits, idle ones make room until it accepts again; the log says so once a minute."""
        now = loop.time()
        if context.get("message") != _NO_DESCRIPTOR:
            loop.default_exception_handler(context)
        elif now - self._no_descriptor_at >= ACCEPT_RETRY_DELAY / 2:
            self._no_descriptor_at = now
            closed = sum(self._evict(now) for _ in range(ACCEPTED_AT_ONCE))
            if now - self._logged_at >= _LOGGED_EVERY_S:
                self._logged_at = now
                log.warning("no descriptor is left for a connection (%s); %d of %d were idle and are closed. Raise the "
                            "limit of open files", context["exception"], closed, len(self._open))  # fmt: skip

    async def sweep(self) -> None:
        """End what is overdue, for ever."""
        limits = self.limits
        shortest = min(limits.header_s, limits.body_s, limits.write_s, limits.idle_s)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, shortest / 4))
            now = loop.time()
            for number, connection in enumerate(list(self._open), 1):
                connection.look(now)
                if not number % SWEPT_AT_ONCE:
                    await asyncio.sleep(0)

    def _evict(self, now: float, address: str = "") -> bool:
        """Close the connection (of `address`, if given) that has waited longest without a whole request."""
        if address:
            waiting = (each for each in self._open if each.address == address and each.incomplete)
            oldest = min(waiting, key=lambda each: each.quiet_since, default=None)
        else:
            oldest = self._longest_incomplete(now)
        if oldest is None:
            return False
        oldest.evict()
        return True

    def _longest_incomplete(self, now: float) -> Connection | None:
        while True:
            while self._incomplete:
                candidate = self._incomplete.pop()
                if candidate in self._open and candidate.incomplete:
                    return candidate
            if now - self._scanned_at < SCAN_S:
                return None
            self._scanned_at = now
            incomplete = (each for each in self._open if each.incomplete)
            self._incomplete = sorted(incomplete, key=lambda each: -each.quiet_since)


async def _begin(http: web.Request, response: web.StreamResponse) -> None:
    if isinstance(http.protocol, Connection):
        http.protocol.begin(response)


def _within_descriptors(connections: int) -> int:
    """Not more connections than this process may have descriptors for, whose soft limit is raised to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            log.warning("http.connections is %d, but %d descriptors allow %d", connections, soft, soft - RESERVED_FILES)
            return max(1, soft - RESERVED_FILES)
    return connections
