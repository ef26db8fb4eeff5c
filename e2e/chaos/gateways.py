"""Which gateway pod a request is sent to, and which of them a fault killed when: what failed there had to fail."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from e2e.chaos.follower import Follower
from e2e.chaos.view import UNREACHABLE, View

_EVERY_S = 0.3


@dataclass(slots=True)
class _Harm:
    """A gateway that was killed or cut off, until it was whole again. Monotonic seconds."""

    url: str
    since: float
    until: float = float("inf")


class Gateways(Follower):
    """In a `with`: follows the pods that a Service leads to, as kube-proxy does, and takes one after the other.

    While the API server is unavailable its last answer counts.
    """

    def __init__(self, view: View, service: str) -> None:
        super().__init__("endpoints", _EVERY_S)
        self._view, self._service = view, service
        self._urls: list[str] = view.endpoints(service)
        self._turn = count()
        self._harms: list[_Harm] = []

    @property
    def urls(self) -> list[str]:
        return list(self._urls)

    def next(self) -> str:
        """Where the next request goes."""
        urls = self._urls
        return urls[next(self._turn) % len(urls)]

    def harm(self, urls: Iterable[str]) -> None:
        """Before a fault kills or cuts off these."""
        self._harms += [_Harm(url, time.monotonic()) for url in urls]

    def recovered(self) -> None:
        """All that is there is whole: who fails from now on has no excuse."""
        for harm in self._harms:
            harm.until = min(harm.until, time.monotonic())

    def harmed(self, url: str, sent: float, ended: float) -> bool:
        """Whether the gateway was killed or cut off while the request was under way, or was not back yet."""
        return any(harm.url == url and sent <= harm.until and harm.since <= ended for harm in self._harms)

    def look(self) -> None:
        with suppress(*UNREACHABLE):  # its last answer counts
            self._urls = self._view.endpoints(self._service) or self._urls
