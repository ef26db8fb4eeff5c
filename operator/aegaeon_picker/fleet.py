"""The endpoints, their open requests, and the choice of the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FALLBACKS = 2  # additional endpoints, which Envoy tries if the first is unavailable


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """The address of a pod that accepts requests."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class Fleet:
    """The endpoints of a pool. `known`: they have been listed."""

    def __init__(self) -> None:
        self._endpoints: tuple[Endpoint, ...] = ()
        self._open: Counter[str] = Counter()
        self._turn = 0
        self.known = False

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._endpoints

    def update(self, endpoints: Iterable[Endpoint]) -> bool:
        """Replace the list; return whether it differs or is the first.

        Open requests of removed endpoints stay counted.
        """
        newest = tuple(sorted(set(endpoints)))
        differs = newest != self._endpoints or not self.known
        self._endpoints, self.known = newest, True
        return differs

    def pick(self, subset: Sequence[str] | None = None) -> list[str]:
        """Return the endpoints to try, fewest open requests first, equal ones round-robin; empty: none is allowed.

        `subset`: the addresses ("ip:port" or "ip") that the gateway allows; None: all.
        """
        allowed = [
            endpoint
            for endpoint in self._endpoints
            if subset is None or str(endpoint) in subset or endpoint.ip in subset
        ]
        self._turn += 1
        start = self._turn % len(allowed) if allowed else 0
        names = [str(endpoint) for endpoint in allowed[start:] + allowed[:start]]
        return sorted(names, key=self._open.__getitem__)[: 1 + FALLBACKS]

    def begin(self, endpoint: str) -> None:
        """Count a request at an endpoint."""
        self._open[endpoint] += 1

    def end(self, endpoint: str) -> None:
        """Count the end of a request."""
        self._open[endpoint] -= 1
        if not self._open[endpoint]:
            del self._open[endpoint]

    def open(self, endpoint: str) -> int:
        """Return the open requests of an endpoint."""
        return self._open[endpoint]
