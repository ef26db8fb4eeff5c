"""Which endpoints there are, how many requests each has open, and who is next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FALLBACKS = 2  # further endpoints named behind the first one, for an Envoy that finds it gone


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """An address of a pod that takes requests."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


class Fleet:
    """The endpoints of one pool. `known` is False until they were listed for the first time."""

    def __init__(self) -> None:
        self._endpoints: tuple[Endpoint, ...] = ()
        self._open: Counter[str] = Counter()
        self._turn = 0
        self.known = False

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return self._endpoints

    def update(self, endpoints: Iterable[Endpoint]) -> bool:
        """Take the whole list; True when it differs or is the first.

        Requests that are open at an endpoint that left stay counted.
        """
        newest = tuple(sorted(set(endpoints)))
        differs = newest != self._endpoints or not self.known
        self._endpoints, self.known = newest, True
        return differs

    def pick(self, subset: Sequence[str] | None = None) -> list[str]:
        """The endpoints to try, in order: fewest open requests first, equals in turn. Empty: none may be used.

        `subset`: the only addresses ("ip:port" or "ip") that the gateway allows; None: all.
        """
        allowed = [each for each in self._endpoints if subset is None or str(each) in subset or each.ip in subset]
        self._turn += 1
        start = self._turn % len(allowed) if allowed else 0
        names = [str(each) for each in allowed[start:] + allowed[:start]]
        return sorted(names, key=self._open.__getitem__)[: 1 + FALLBACKS]

    def begin(self, endpoint: str) -> None:
        """A request goes there."""
        self._open[endpoint] += 1

    def end(self, endpoint: str) -> None:
        """It has ended."""
        self._open[endpoint] -= 1
        if not self._open[endpoint]:
            del self._open[endpoint]

    def open(self, endpoint: str) -> int:
        """Requests that are open there."""
        return self._open[endpoint]
