"""What kubelet and Prometheus ask a sidecar: is it alive, is it of use, how full is it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aegaeon_proto.v1.model_pb2 import ModelPhase
from aegaeon_sidecar.engine import Engine
from aegaeon_sidecar.errors import SettingsError

_FRESH_S = 1.0  # a rendering may be this old: many scrapers cost no more than one


class EngineMetrics(Collector):
    """The engine's memory and work at the moment of the scrape."""

    def __init__(self, engine: Engine) -> None:
        self._state = engine.state

    def collect(self) -> Iterator[Metric]:
        """One family for each figure."""
        state = self._state
        with state.changed:
            sequences = len(state.sequences)
            phases = [ModelPhase.Name(m.phase).removeprefix("MODEL_PHASE_").lower() for m in state.models.values()]
            resident = sum(model.resident for model in state.models.values())
            tiers = {"device": state.device, "host": state.host}
            slabs = {name: (tier.pool.total, tier.slabs_free) for name, tier in tiers.items()}
        yield _gauge("sequences", "Sequences held.", sequences)
        yield _gauge("models_resident", "Models whose weights are on the device.", resident)
        models = GaugeMetricFamily("aegaeon_sidecar_models", "Models of the catalog.", labels=["phase"])
        for phase in sorted(set(phases)):
            models.add_metric([phase], phases.count(phase))
        total = GaugeMetricFamily("aegaeon_sidecar_slabs", "Slabs of memory.", labels=["tier"])
        free = GaugeMetricFamily("aegaeon_sidecar_slabs_free", "Slabs that nobody has.", labels=["tier"])
        for name, (of_all, left) in slabs.items():
            total.add_metric([name], of_all)
            free.add_metric([name], left)
        yield from (models, total, free)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"aegaeon_sidecar_{name}", text, value)


class Pages:
    """GET /healthz, /readyz and /metrics. `ready`: whether it is attached, and not about to end."""

    def __init__(self, listen: str, engine: Engine, ready: Callable[[], bool]) -> None:
        """`listen` is "host:port"."""
        self._listen = listen
        self._ready = ready
        self._registry = CollectorRegistry()
        self._registry.register(EngineMetrics(engine))
        self._rendered = (float("-inf"), b"")
        self._rendering = asyncio.Lock()
        app = web.Application()
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._is_ready)
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        """Raises SettingsError when the port is taken."""
        host, _, port = self._listen.rpartition(":")
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port), shutdown_timeout=0.2).start()
        except OSError as error:
            await self._runner.cleanup()
            raise SettingsError(f"metrics_listen: cannot serve on {self._listen}: {error.strerror}") from error

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        """A lane that died ends the process, so an answer is all there is to it."""
        return web.Response(text="alive\n")

    async def _is_ready(self, _request: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(text="ready\n" if ready else "not attached, or draining\n", status=200 if ready else 503)

    async def _scrape(self, _request: web.Request) -> web.Response:
        async with self._rendering:
            if time.monotonic() - self._rendered[0] > _FRESH_S:
                self._rendered = (time.monotonic(), await asyncio.to_thread(generate_latest, self._registry))
        return web.Response(body=self._rendered[1], headers={"Content-Type": CONTENT_TYPE_LATEST})
