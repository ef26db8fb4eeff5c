"""Tells gateways the places of requests that wait, so that clients see a queue that moves and not silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core.domain import GatewayId

EVERY_S = 1.0
"""a pass over the queue of 10,000 takes 10 ms"""

Send = Callable[[GatewayId, gateway_pb2.GatewayReply], None]


class QueuePositions:
    """Sends changes of queue positions once a second. `places` gives the position of each request that has waited
    longer than that."""

    def __init__(self, places: Callable[[float], Mapping[GatewayId, Mapping[str, int]]], send: Send) -> None:
        self._places = places
        self._send = send
        self._sent: Mapping[GatewayId, Mapping[str, int]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Go on until `stop`; nothing happens when it has begun already."""
        if self._timer is None:
            self._set()

    def stop(self) -> None:
        """Tell nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self, gateway: GatewayId) -> None:
        """Forget a gateway that attached again, so that it receives all positions anew."""
        self._sent = {known: places for known, places in self._sent.items() if known != gateway}

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._tell)

    def _tell(self) -> None:
        current = self._places(EVERY_S)
        for gateway, places in current.items():
            sent = self._sent.get(gateway, {})
            changed = [(request, place) for request, place in places.items() if sent.get(request) != place]
            if changed:
                self._send(gateway, _message(changed))
        self._sent = current
        self._set()


def _message(places: list[tuple[str, int]]) -> gateway_pb2.GatewayReply:
    message = gateway_pb2.Places(places=[gateway_pb2.Place(request=request, place=place) for request, place in places])
    return gateway_pb2.GatewayReply(places=message)
