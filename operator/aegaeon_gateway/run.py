"""The gateway's parts put together, started in order, stopped in the opposite one."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from aegaeon_gateway.batches.kept import Kept as KeptBatches
from aegaeon_gateway.batches.runner import BatchRunner
from aegaeon_gateway.batches.throttle import Pressure, Throttle
from aegaeon_gateway.batches.work import Tools
from aegaeon_gateway.config import GatewayConfig
from aegaeon_gateway.conversations import Bounds, Conversations, MemoryConversations, RedisConversations
from aegaeon_gateway.http.access_log import AccessLog
from aegaeon_gateway.http.batches import LineAsker
from aegaeon_gateway.http.connections import ACCEPTED_AT_ONCE, Connections
from aegaeon_gateway.http.gateway import Gateway
from aegaeon_gateway.http.intake import Intake
from aegaeon_gateway.http.refusals import Refusals
from aegaeon_gateway.http.server import make_app
from aegaeon_gateway.http.shutdown import CUT_S, GracefulShutdown
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog
from aegaeon_gateway.models.texts import Texts
from aegaeon_gateway.redis_client import RedisServer
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_gateway.rpc.sink import start_sink
from aegaeon_gateway.tenancy import Counting, Limits, PrefixSalts, Tenants, TenantsFile, connect
from aegaeon_gateway.vllm_metrics import VllmNames
from aegaeon_gateway.workers.pool import PoolConfig, WorkerPool
from aegaeon_gateway.workers.supervisor import Starter, start_process
from aegaeon_gateway.workers.wire import Limit
from aegaeon_proto.pages import Pages
from aegaeon_proto.tracing import Tracing
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

log = logging.getLogger(__name__)

_REDIS_S = 2.0  # a kept response may have some MB
_WAITING = 128  # connections that may wait to be accepted


async def run(config: GatewayConfig, stop: asyncio.Event) -> None:
    """Serve until `stop`, or until a part that must live for ever has failed (its error is raised)."""
    async with serve(config) as served:
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, *served.tasks], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task in served.tasks:
            if task.done():
                task.result()
        log.info("stopping: open streams have %g s to end", config.drain_s)


class Served:
    """A running gateway: its port, its open requests, what it knows of models, its metrics, its background tasks."""

    def __init__(self, port: int, open_: OpenRequests, gateway: Gateway, tasks: list[asyncio.Task[None]]) -> None:
        self.port = port
        self.open = open_
        self.catalog = gateway.catalog
        self.limits = gateway.limits
        self.intake = gateway.intake
        self.texts = gateway.texts
        self.conversations = gateway.conversations
        self.metrics = gateway.metrics
        self.tasks = tasks


@asynccontextmanager
async def serve(config: GatewayConfig, start_workers: Starter = start_process) -> AsyncIterator[Served]:
    """Start everything; on leaving take no more connections after withdraw_s, let what is open end, then stop.

    Raises OSError or RuntimeError when an address cannot be used.
    """
    open_ = OpenRequests()
    counting = connect(config.redis, config.redis_password_file, config.redis_ca_file, lambda: gateway.link.gateways)
    gateway = _gateway(config, open_, counting, start_workers)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(counting.close)
        stack.push_async_callback(gateway.tracing.close)
        stack.push_async_callback(gateway.conversations.close)
        stack.push_async_callback(gateway.workers.stop)
        stack.push_async_callback(gateway.texts.stop)
        await gateway.workers.start()
        sink = await start_sink(config.sink, config.tls_folder, open_)
        stack.callback(sink.stop)
        access_log = AccessLog(_write_out if config.access_log else None)
        tasks = [asyncio.create_task(gateway.link.run()), asyncio.create_task(gateway.link.sweep())]
        tasks += [asyncio.create_task(runner.run()) for runner in _runner(gateway, open_, access_log)]
        stack.push_async_callback(_cancel, tasks)
        shutdown = GracefulShutdown()
        await stack.enter_async_context(_pages(config, gateway, shutdown))
        port, sweeping = await stack.enter_async_context(_http(config, gateway, shutdown, access_log))
        tasks.append(sweeping)
        yield Served(port, open_, gateway, tasks)


def _gateway(config: GatewayConfig, open_: OpenRequests, counting: Counting, start_workers: Starter) -> Gateway:
    """The parts, connected to each other; none of them has begun."""
    metrics = Metrics()
    metrics.registry.register(VllmNames(metrics, open_.load_by_model))
    if counting.link is not None:
        redis = counting.link
        metrics.watch_redis(lambda: not redis.away)
    workers = WorkerPool(_pool_config(config), start_workers)
    texts = Texts(workers, config.hub_cache, config.fetched, config.outbound, config.tokenizer_bytes)
    tenants = Tenants(
        TenantsFile(Path(config.tenants) if config.tenants else None), by_scheduler=config.tenants_by_scheduler
    )
    catalog = Catalog(on_change=_catalog_changed(texts, tenants, open_, metrics))
    link = SchedulerLink(
        name=config.name,
        targets=(config.scheduler, *config.standbys),
        tls=config.tls_folder,
        sink=config.sink,
        hold_s=config.hold_s,
        open_=open_,
        catalog=catalog,
        tenants=tenants,
        metrics=metrics,
        unusable=texts.failures,
    )
    texts.report = link.text_status
    if counting.link is not None:
        counting.link.changed = link.redis_status
    salts = PrefixSalts(config.prefix_scope, Path(config.prefix_secret_file) if config.prefix_secret_file else None)
    limits = Limits(counting, config.hold_s)
    intake = Intake(config.max_open_requests, config.request_memory_bytes)
    kept, now = _conversations(config), int(time.time())
    tracing = Tracing(config.tracing, "aegaeon-gateway", config.name)
    batches = KeptBatches.open(config.batches, config.way_out) if config.batches else None
    quotas = (tenants, salts, limits)
    return Gateway(config, catalog, texts, workers, intake, link, metrics, *quotas, tracing, kept, batches, now)


def _catalog_changed(
    texts: Texts, tenants: Tenants, open_: OpenRequests, metrics: Metrics
) -> Callable[[list[ModelStatus]], None]:
    def changed(models: list[ModelStatus]) -> None:
        texts.keep(models)
        if tenants.known:
            served = {model.spec.name for model in models} | {generation.request.model for generation in open_}
            names = {"", *(tenant.name for tenant in tenants.current().tenants)}  # "": clients without a key
            metrics.follow(served, names, time.monotonic())

    return changed


def _runner(gateway: Gateway, open_: OpenRequests, access_log: AccessLog) -> Iterator[BatchRunner]:
    """The runner of batches, where the pool keeps any."""
    if (kept := gateway.batches) is None:
        return
    seen = gateway.metrics.late

    def pressure() -> Pressure:
        nonlocal seen
        late, seen = gateway.metrics.late - seen, gateway.metrics.late
        return Pressure(late, open_.overdue(time.monotonic()), kv_used=gateway.metrics.kv_used)

    asker = LineAsker(gateway, access_log, kept.settings.defer_s)
    throttle, longest = Throttle(kept.settings.in_flight), gateway.config.max_body_bytes
    tools = Tools(kept.store, kept.files, kept.settings, throttle, asker, longest)
    yield BatchRunner(tools, gateway.config.name, pressure, kept.wake)


def _conversations(config: GatewayConfig) -> Conversations:
    """Where responses are kept: with the quotas, if there is a Redis."""
    bounds = Bounds(config.responses_s, config.responses, config.responses_bytes)
    if not config.redis:
        return MemoryConversations(bounds, config.responses_memory_bytes)
    files = (Path(file) if file else None for file in (config.redis_password_file, config.redis_ca_file))
    return RedisConversations(bounds, RedisServer(config.redis, *files).client(_REDIS_S, texts=False))


def _pool_config(config: GatewayConfig) -> PoolConfig:
    limit = Limit(config.worker_cpu_s, config.worker_memory_bytes)
    return PoolConfig(config.workers, limit, max(config.hold_s, 4 * config.worker_cpu_s))


@asynccontextmanager
async def _http(
    config: GatewayConfig, gateway: Gateway, shutdown: GracefulShutdown, access_log: AccessLog
) -> AsyncIterator[tuple[int, asyncio.Task[None]]]:
    """Serve HTTP; yields the port, and the task that ends overdue connections. At the end connections are drained; what
    is left then is cut."""
    refusals = Refusals(gateway.metrics)
    app = make_app(gateway, refusals, access_log, shutdown.inside)
    connections = Connections(config.http, gateway.metrics, refusals)
    shutdown.attach(app)
    connections.attach(app)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=CUT_S)
    await runner.setup()
    sweeping = asyncio.create_task(connections.sweep())
    asyncio.get_running_loop().set_exception_handler(connections.failed)
    try:
        server = await _listen(config, connections, runner)
        port = server.sockets[0].getsockname()[1]
        log.info("listening on http://%s:%d", config.address[0], port)
        try:
            yield port, sweeping
        finally:
            await shutdown.drain(config.withdraw_s, config.drain_s, server.close)
    finally:
        await runner.cleanup()
        await _cancel([sweeping])
        asyncio.get_running_loop().set_exception_handler(None)


async def _listen(config: GatewayConfig, connections: Connections, runner: web.AppRunner) -> asyncio.Server:
    host, port = config.address
    handlers, loop = runner.server, asyncio.get_running_loop()
    assert handlers is not None, "the runner is set up"
    server = await loop.create_server(lambda: connections.make(handlers), host, port, backlog=ACCEPTED_AT_ONCE)
    for listening in server.sockets:  # asyncio knows one number for what may wait and for what it accepts at once
        with listening.dup() as same:
            same.listen(_WAITING)
    return server


@asynccontextmanager
async def _pages(config: GatewayConfig, gateway: Gateway, shutdown: GracefulShutdown) -> AsyncIterator[None]:
    """Serve metrics and probes on a port of their own."""
    if config.metrics_listen is None:
        yield
        return

    def ready() -> bool:
        return gateway.known and not shutdown.begun

    unready = "shutting down, or the lists of models and tenants are not loaded yet"
    pages = Pages(config.metrics_listen, ready, unready, gateway.metrics.render)
    await pages.start()
    try:
        yield
    finally:
        await pages.stop()


def _write_out(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
