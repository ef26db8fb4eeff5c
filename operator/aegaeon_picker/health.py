"""gRPC's health service (grpc.health.v1), under every name that gateways and their manifests probe."""

from __future__ import annotations

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from aegaeon_picker.transport.calls import Methods, Send, parse
from aegaeon_picker.transport.errors import CallError, Status

NAMES = ("", "liveness", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")
ALIVE = "liveness"


class Health:
    """Alive from the start; ready when it is said so."""

    def __init__(self) -> None:
        self.ready = False
        self._watches: set[_Watch] = set()

    @property
    def methods(self) -> Methods:
        return {
            "/grpc.health.v1.Health/Check": lambda send: _Check(self, send),
            "/grpc.health.v1.Health/Watch": lambda send: _Watch(self, self._watches, send),
        }

    def set_ready(self, ready: bool) -> None:
        """Whether requests can be routed; watchers are notified."""
        self.ready = ready
        for watch in list(self._watches):  # telling one may close it, or another of its connection
            watch.tell()

    def answer(self, name: str) -> HealthCheckResponse:
        """SERVICE_UNKNOWN for what is none of NAMES."""
        if name not in NAMES:
            return HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
        serves = self.ready or name == ALIVE
        return HealthCheckResponse(status=HealthCheckResponse.SERVING if serves else HealthCheckResponse.NOT_SERVING)


class _Check:
    lasting = False

    def __init__(self, health: Health, send: Send) -> None:
        self._health, self._send = health, send

    def message(self, data: bytes) -> None:
        name = parse(HealthCheckRequest, data).service
        if name not in NAMES:
            raise CallError(Status.NOT_FOUND, f"no service {name[:40]!r}; there are {NAMES}")
        self._send(self._health.answer(name).SerializeToString())

    def close(self) -> None:
        """Nothing is held."""


class _Watch:
    lasting = True

    def __init__(self, health: Health, watches: set[_Watch], send: Send) -> None:
        self._health, self._watches, self._send = health, watches, send
        self._name, self._sent = "", b""

    def message(self, data: bytes) -> None:
        self._name = parse(HealthCheckRequest, data).service
        self._watches.add(self)
        self.tell()

    def tell(self) -> None:
        """What changed since the last time."""
        newest = self._health.answer(self._name).SerializeToString()
        if newest != self._sent:
            self._sent = newest
            self._send(newest)

    def close(self) -> None:
        self._watches.discard(self)
