"""What Prometheus reads: events and decisions as they happen, the state of the pool at the moment of the scrape."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.errors import ListenError

# Seconds; the bar is 200 us for a report and 2 ms for a pass over the pool.
_EVENT_BUCKETS = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 20e-3, 100e-3)


class EventMetrics:
    """An observer of the driver: how many events and decisions of each kind, and how long the core took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._events = Counter("aegaeon_scheduler_events", "Events handled.", ["kind"], registry=registry)
        self._decisions = Counter("aegaeon_scheduler_decisions", "Decisions taken.", ["kind"], registry=registry)
        self._seconds = Histogram(
            "aegaeon_scheduler_event_seconds",
            "Seconds that the core took for one event.",
            buckets=_EVENT_BUCKETS,
            registry=registry,
        )
        self._known: dict[type, Counter] = {}

    def __call__(self, now: float, event: events.Event, decided: list[commands.Command], seconds: float) -> None:
        """Count one event."""
        self._child(self._events, type(event)).inc()
        self._seconds.observe(seconds)
        for command in decided:
            kind = type(command.body) if isinstance(command, commands.Send) else type(command)
            self._child(self._decisions, kind).inc()

    def _child(self, counter: Counter, kind: type) -> Counter:
        child = self._known.get(kind)
        if child is None:
            child = self._known[kind] = counter.labels(kind.__name__)
        return child


class MetricsServer:
    """GET /metrics. In the event loop itself, because the state that a scrape reads is touched there alone."""

    def __init__(self, registry: CollectorRegistry, listen: str) -> None:
        """`listen` is "host:port"."""
        self._registry = registry
        self._listen = listen
        app = web.Application()
        app.router.add_get("/metrics", self._scrape)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        """Raises ListenError when the port is taken."""
        host, _, port = self._listen.rpartition(":")
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host.strip("[]"), int(port), shutdown_timeout=0.2).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError(f"metrics_listen: cannot serve on {self._listen}: {error.strerror}") from error

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    async def _scrape(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
