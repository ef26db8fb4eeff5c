"""The sidecar's Prometheus metrics: memory use of its tiers, and beside them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aegaeon_sidecar.engine.engine import Engine


class EngineMetrics(Collector):
    """The engine's memory and work at the moment of the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._state = engine.state

    def collect(self) -> Iterator[Metric]:
        """One family for each figure."""
        state = self._state
        with state.monitor.changed:
            sequences = len(state.kv.sequences)
            phases = [model.phase.value for model in state.table.models.values()]
            resident = sum(model.resident for model in state.table.models.values())
            tiers = {"device": state.kv.device, "host": state.kv.host}
            slabs = {name: (tier.pool.total, tier.slabs_free) for name, tier in tiers.items()}
        yield _gauge("sequences", "Sequences held.", sequences)
        yield _gauge("models_resident", "Models whose weights are on the device.", resident)
        models = GaugeMetricFamily("aegaeon_sidecar_models", "Models of the catalog.", labels=["phase"])
        for phase in sorted(set(phases)):
            models.add_metric([phase], phases.count(phase))
        total = GaugeMetricFamily("aegaeon_sidecar_slabs", "Slabs of memory.", labels=["tier"])
        free = GaugeMetricFamily("aegaeon_sidecar_slabs_free", "Free slabs.", labels=["tier"])
        for name, (of_all, left) in slabs.items():
            total.add_metric([name], of_all)
            free.add_metric([name], left)
        yield from (models, total, free)
        outside = state.outside.sample()
        yield _gauge("outside_slabs_bytes", "Memory beside slabs and host cache.", outside.used_bytes)
        yield _gauge("outside_slabs_peak_bytes", "The most of it since the start.", outside.peak_bytes)
        yield _gauge("outside_slabs_reserved_bytes", "What is reserved for it.", outside.reserved_bytes)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"aegaeon_sidecar_{name}", text, value)
