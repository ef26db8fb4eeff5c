"""What Prometheus reads of the picker."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from aegaeon_picker.fleet import Fleet


class Metrics:
    """In a registry of its own, so that several pickers can live in one process (tests)."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "aegaeon_picker_requests", "HTTP requests seen, by outcome.", ("outcome",), registry=self.registry
        )
        endpoints = Gauge("aegaeon_picker_endpoints", "Endpoints that take requests.", registry=self.registry)
        endpoints.set_function(lambda: len(fleet.endpoints))
        waiting = Gauge("aegaeon_picker_open_requests", "Requests that are open.", registry=self.registry)
        waiting.set_function(lambda: sum(fleet.open(str(each)) for each in fleet.endpoints))

    def ended(self, refused: bool) -> None:
        self._requests.labels("refused" if refused else "routed").inc()
