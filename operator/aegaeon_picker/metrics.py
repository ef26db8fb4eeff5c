"""The picker's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from aegaeon_picker.fleet import Fleet
from aegaeon_picker.transport.limits import Reason
from aegaeon_picker.transport.rejections import Scope
from aegaeon_picker.transport.server import Server


class Metrics:
    """The metrics, in a registry of their own, for several pickers in one process (tests)."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "aegaeon_picker_requests", "HTTP requests, by outcome.", ("outcome",), registry=self.registry
        )
        self._rejected = Counter(
            "aegaeon_picker_rejected",
            "Refused or aborted connections and streams, by reason.",
            ("scope", "reason"),
            registry=self.registry,
        )
        endpoints = Gauge("aegaeon_picker_endpoints", "Endpoints that accept requests.", registry=self.registry)
        endpoints.set_function(lambda: len(fleet.endpoints))
        waiting = Gauge("aegaeon_picker_open_requests", "Open requests.", registry=self.registry)
        waiting.set_function(lambda: sum(fleet.open(str(endpoint)) for endpoint in fleet.endpoints))

    def ended(self, refused: bool) -> None:
        self._requests.labels("refused" if refused else "routed").inc()

    def rejected(self, scope: Scope, reason: Reason) -> None:
        self._rejected.labels(scope, reason).inc()

    def watch(self, server: Server) -> None:
        """Export the connections, streams and buffers of a port."""
        connections = Gauge("aegaeon_picker_connections", "Open connections.", registry=self.registry)
        connections.set_function(lambda: server.admission.open)
        streams = Gauge("aegaeon_picker_streams", "Open streams.", registry=self.registry)
        streams.set_function(lambda: server.budget.streams)
        buffered = Gauge("aegaeon_picker_buffered_bytes", "Buffered bytes of messages.", registry=self.registry)
        buffered.set_function(lambda: server.budget.bytes)
