"""The whole service put together: one driver, its gRPC servers, metrics; started, and drained at the end."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import grpc
from prometheus_client import generate_latest

from aegaeon_proto.certificates import TlsError
from aegaeon_proto.outbound.egress import from_environment
from aegaeon_proto.servers import add_port, make_server
from aegaeon_proto.tracing import Tracing, TracingSettings
from aegaeon_proto.v1 import admin_pb2_grpc, engine_pb2_grpc, gateway_pb2_grpc, leadership_pb2_grpc
from aegaeon_scheduler.config import SchedulerConfig
from aegaeon_scheduler.core.domain import SeqId
from aegaeon_scheduler.errors import ListenError
from aegaeon_scheduler.service.admin import AdminService
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.changes import CatalogChanges
from aegaeon_scheduler.service.driver import Brain, Driver, Observer
from aegaeon_scheduler.service.engine import EngineService
from aegaeon_scheduler.service.frontend import FrontendService, status_alone
from aegaeon_scheduler.service.lag import Lag, SchedulerLoad
from aegaeon_scheduler.service.leadership import LeadershipService
from aegaeon_scheduler.service.metrics import EventMetrics, LoadMetrics, PoolMetrics, process_registry
from aegaeon_scheduler.service.mismatched import Mismatched
from aegaeon_scheduler.service.model_log import ModelLog
from aegaeon_scheduler.service.status import StatusView
from aegaeon_scheduler.service.tenants import configured
from aegaeon_scheduler.service.throttle import Throttle
from aegaeon_scheduler.service.tracing import RequestSpans
from aegaeon_scheduler.service.turn_steps import TurnSteps

if TYPE_CHECKING:
    from aegaeon_proto.pages import Pages

# What is still queued for a peer may be written within this time; the process is to end within 2 s of SIGTERM.
_DRAIN_S = 0.5
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),  # a prompt of some million tokens
    ("grpc.max_send_message_length", 64 << 20),
)


class Listening(NamedTuple):
    """A server, where it listens, by what key of the configuration, and its certificates."""

    key: str
    address: str
    server: grpc.aio.Server
    tls: Path | None


class Service:
    """A scheduler that serves. `clock` is monotonic seconds; `bases` numbers the streams of sidecars (see codec)."""

    def __init__(
        self,
        config: SchedulerConfig,
        brain: Brain,
        clock: Callable[[], float],
        bases: Callable[[], int],
        observers: Iterable[Observer] = (),
    ) -> None:
        self.crashed = asyncio.Event()
        self._config = config
        self._registry = process_registry()
        watchers: list[Observer] = [EventMetrics(self._registry), ModelLog(), *observers]
        egress = from_environment(os.environ) if config.ambient_egress else config.egress
        traced = TracingSettings(config.otlp_endpoint, egress=egress) if config.otlp_endpoint else None
        self._tracing = Tracing(traced, "aegaeon-scheduler", config.pool)
        if traced is not None:
            watchers.append(RequestSpans(self._tracing.tracer, clock, self._traceparent_of))
        self.driver = Driver(brain, clock, watchers, self.crashed.set)
        self.leadership = LeadershipService(self.driver)
        self.catalog = Catalog(config.models, self._announce, brain.apart, brain.roles, brain.role_of)
        self._changes = CatalogChanges(self.catalog, self.driver, self._tell_engines, config.start_s)
        throttle = Throttle()
        self._turn_steps = TurnSteps(self.driver)
        self._lag = Lag(clock, throttle, self._turn_steps.measured)
        self.engine = EngineService(
            self.driver, self.catalog, self._changes, config.heartbeat_timeout_s, config.reattach_s, bases, throttle
        )
        self._view = view = StatusView(
            config.pool,
            brain,
            clock,
            self.catalog,
            self.driver.instances,
            self.engine.starting.suspects,
            self._load,
        )
        mismatched = Mismatched(self.catalog, self.driver, self._changes.rollouts)
        self.frontend = FrontendService(
            self.driver, self.catalog, mismatched, config.gateway_grace_s, view.status, brain.kv_used, self._lag
        )
        if config.tenants is not None:
            self.frontend.set_tenants(configured(config.tenants))
        self._scraped = view.snapshot()
        self._register_metrics()
        self._servers = [self._for_pool(), *self._for_status(), *self._for_operator(view)]
        self._serving = False
        self._pages = self._pages_on(config.metrics_listen) if config.metrics_listen else None

    def _register_metrics(self) -> None:
        self._registry.register(LoadMetrics(self._load))
        self._registry.register(
            PoolMetrics(
                lambda: self._scraped,
                self.driver.instances,
                lambda: self._changes.start_s,
                lambda: not self.driver.waits,
            )
        )

    def _pages_on(self, listen: str) -> Pages:
        from aegaeon_proto.pages import Pages  # its HTTP server is a third of what a scheduler would import

        return Pages(listen, lambda: self._serving, "not serving", self._render)

    def _for_pool(self) -> Listening:
        """Sidecars, gateways, and the scheduler that stands by."""
        server = make_server(_OPTIONS)
        engine_pb2_grpc.add_EngineServicer_to_server(self.engine, server)
        gateway_pb2_grpc.add_FrontendServicer_to_server(self.frontend, server)
        leadership_pb2_grpc.add_LeadershipServicer_to_server(self.leadership, server)
        return Listening("listen", self._config.listen, server, self._config.tls)

    def _for_status(self) -> Iterator[Listening]:
        """The pool's status without certificates, for who may forward a port of the pod."""
        if self._config.status_listen is not None:
            server = make_server()
            server.add_generic_rpc_handlers((status_alone(self.frontend),))
            yield Listening("status_listen", self._config.status_listen, server, None)

    def _for_operator(self, view: StatusView) -> Iterator[Listening]:
        if self._config.admin_listen is not None:
            server, incarnation = make_server(_OPTIONS), uuid.uuid4().hex[:12]
            admin = AdminService(
                incarnation,
                self.catalog,
                self._changes,
                self.frontend,
                self.engine,
                view.status,
                self.leadership.reply,
            )
            admin_pb2_grpc.add_AdminServicer_to_server(admin, server)
            yield Listening("admin_listen", self._config.admin_listen, server, self._config.tls)

    def _tell_engines(self, retry: bool) -> None:
        self.engine.send_catalog(retry)

    async def start(self) -> None:
        """Tell the core of the models, then serve. Raises ListenError when an address cannot be bound."""
        self.driver.handle(self.catalog.event())
        for listener in self._servers:
            try:
                add_port(listener.server, listener.address, listener.tls)
            except (RuntimeError, TlsError) as error:
                raise ListenError(f"{listener.key}: cannot serve on {listener.address}: {error}") from error
        if self._pages:
            try:
                await self._pages.start()
            except OSError as error:
                raise ListenError(str(error)) from error
        self._lag.start()
        for listener in self._servers:
            await listener.server.start()
        self._serving = True

    async def stop(self) -> None:
        """Write what is queued, end every stream, close the ports."""
        self._serving = False
        self._changes.stop()
        self.engine.stop()
        self.frontend.stop()
        self.driver.stop()
        await self._lag.stop()
        await asyncio.gather(*(listener.server.stop(_DRAIN_S) for listener in self._servers))
        if self._pages:
            await self._pages.stop()
        await self._tracing.close()

    async def _render(self) -> bytes:
        """The tables are copied in the loop, where alone they are touched; thousands of lines are written beside it."""
        self._scraped = self._view.snapshot()
        return await asyncio.to_thread(generate_latest, self._registry)

    def _load(self) -> SchedulerLoad:
        intake = self.frontend.intake
        return SchedulerLoad(self._lag.seconds, len(intake), intake.refused, self._turn_steps.factor)

    def _traceparent_of(self, seq: SeqId) -> str:
        kept = self.driver.sequences.get(seq)
        return kept.submit.traceparent if kept is not None else ""

    def _announce(self) -> None:
        self.frontend.announce()
