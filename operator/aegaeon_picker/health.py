"""The gRPC health service (grpc.health.v1), with every name that gateways and their manifests probe."""

from __future__ import annotations

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from aegaeon_picker.transport.calls import Methods, Send, parse
from aegaeon_picker.transport.errors import CallError, Status

NAMES = ("", "liveness", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")
ALIVE = "liveness"


class Health:
    """The health state: alive from the start, ready after `set_ready`."""

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
        """Set whether requests can be routed, and notify watchers."""
        self.ready = ready
        for watch in list(self._watches):  # a notification may close the watch, or another of its connection
            watch.notify()

    def answer(self, name: str) -> HealthCheckResponse:
        """Return the status of a service; SERVICE_UNKNOWN for a name that is not in NAMES."""
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
            raise CallError(Status.NOT_FOUND, f"unknown service {name[:40]!r}; known: {NAMES}")
        self._send(self._health.answer(name).SerializeToString())

    def close(self) -> None:
        """Release nothing."""


class _Watch:
    lasting = True

    def __init__(self, health: Health, watches: set[_Watch], send: Send) -> None:
        self._health, self._watches, self._send = health, watches, send
        self._name, self._sent = "", b""

    def message(self, data: bytes) -> None:
        self._name = parse(HealthCheckRequest, data).service
        self._watches.add(self)
        self.notify()

    def notify(self) -> None:
        """Send the status if it has changed."""
        newest = self._health.answer(self._name).SerializeToString()
        if newest != self._sent:
            self._sent = newest
            self._send(newest)

    def close(self) -> None:
        self._watches.discard(self)
