"""The picker's two ports: Envoy's streams with health checks, and health checks for the kubelet's probes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from aegaeon_picker.exchange import Exchange
from aegaeon_picker.fleet import Endpoint, Fleet
from aegaeon_picker.health import Health
from aegaeon_picker.metrics import Metrics
from aegaeon_picker.requests import read_request
from aegaeon_picker.transport.calls import Methods, Send
from aegaeon_picker.transport.limits import Limits
from aegaeon_picker.transport.server import Server


class Picker:
    """The ext_proc service: one call for each HTTP request."""

    def __init__(self, fleet: Fleet, metrics: Metrics, conformance: bool) -> None:
        self._fleet, self._metrics, self._conformance = fleet, metrics, conformance

    @property
    def methods(self) -> Methods:
        return {"/envoy.service.ext_proc.v3.ExternalProcessor/Process": self._process}

    def _process(self, send: Send) -> _Process:
        return _Process(Exchange(self._fleet, self._conformance), self._metrics, send)


class _Process:
    lasting = False

    def __init__(self, exchange: Exchange, metrics: Metrics, send: Send) -> None:
        self._exchange, self._metrics, self._send = exchange, metrics, send

    def message(self, data: bytes) -> None:
        for response in self._exchange.answer(read_request(data)):
            self._send(response.SerializeToString())

    def close(self) -> None:
        self._exchange.close()
        self._metrics.ended(self._exchange.refused)


@dataclass(frozen=True, slots=True)
class Served:
    """The two listening ports."""

    main: Server
    probes: Server
    health: Health

    async def stop(self, grace_s: float) -> None:
        """Become not ready and stop; open streams have `grace_s` to end."""
        self.health.set_ready(False)
        await self.main.stop(grace_s)
        await self.probes.stop(0)


async def serve(
    picker: Picker,
    metrics: Metrics,
    listen: Endpoint,
    probes: Endpoint,
    tls: ssl.SSLContext | None,
    limits: Limits | None = None,
) -> Served:
    """Start both ports; probes have no TLS, which the kubelet does not support. Raises OSError for a used port."""
    health = Health()
    limits = limits or Limits()
    main = Server({**picker.methods, **health.methods}, tls, limits, metrics.rejected)
    served = Served(main, Server(health.methods, None, limits, metrics.rejected), health)
    metrics.watch(main)
    await main.start(listen.ip, listen.port)
    await served.probes.start(probes.ip, probes.port)
    return served
