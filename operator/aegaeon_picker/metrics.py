"""What Prometheus reads of the picker."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from aegaeon_picker.fleet import Fleet
from aegaeon_picker.transport.limits import Reason
from aegaeon_picker.transport.rejections import Scope
from aegaeon_picker.transport.server import Server


class Metrics:
    """In a registry of its own, so that several pickers can live in one process (tests)."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "aegaeon_picker_requests", "HTTP requests seen, by outcome.", ("outcome",), registry=self.registry
        )
        self._rejected = Counter(
            "aegaeon_picker_rejected",
            "Connections and streams that were refused or ended, by reason.",
            ("scope", "reason"),
            registry=self.registry,
        )
        endpoints = Gauge("aegaeon_picker_endpoints", "Endpoints that take requests.", registry=self.registry)
        endpoints.set_function(lambda: len(fleet.endpoints))
        waiting = Gauge("aegaeon_picker_open_requests", "Requests that are open.", registry=self.registry)
        waiting.set_function(lambda: sum(fleet.open(str(each)) for each in fleet.endpoints))

    def ended(self, refused: bool) -> None:
        self._requests.labels("refused" if refused else "routed").inc()

    def rejected(self, scope: Scope, reason: Reason) -> None:
        self._rejected.labels(scope, reason).inc()

    def watch(self, server: Server) -> None:
        """What that port holds."""
        connections = Gauge("aegaeon_picker_connections", "Connections that are open.", registry=self.registry)
        connections.set_function(lambda: server.admission.open)
        streams = Gauge("aegaeon_picker_streams", "Streams that are open.", registry=self.registry)
        streams.set_function(lambda: server.budget.streams)
        held = Gauge("aegaeon_picker_buffered_bytes", "Bytes of messages that are buffered.", registry=self.registry)
        held.set_function(lambda: server.budget.bytes)
