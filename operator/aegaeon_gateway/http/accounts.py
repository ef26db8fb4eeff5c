"""The interface of a connection to the counts of all connections (connections.py)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any, Protocol

from aegaeon_gateway.config import HttpLimits
from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.http.refusals import Refusals
from aegaeon_gateway.metrics import Metrics


class Accounts(Protocol):
    """Counts connections and what they hold; see Connections for what each method does."""

    limits: HttpLimits
    metrics: Metrics
    refusals: Refusals

    def enter(self, connection: Any, now: float) -> ApiError | None: ...

    def leave(self, connection: Any) -> None: ...

    def trusted(self, address: IPv4Address | IPv6Address) -> bool: ...

    def hold(self, body_bytes: int) -> None: ...
