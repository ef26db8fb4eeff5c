"""The operator: leader election, list, watch with kopf, reconcile.

kopf watches and reconnects; its handlers only record changes. It writes nothing to objects: no finalizer (garbage
collection deletes children, pods drain by themselves), no annotation, no status of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from aegaeon_kube.errors import KubeError
from aegaeon_kube.lease import LeaseSettings
from aegaeon_operator.config import OperatorConfig
from aegaeon_operator.errors import SettingsError
from aegaeon_operator.kube.client import GPU_POOLS, MODEL_POOLS, UNKNOWN, Cluster, Resource, connect, labelled
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.kinds import Kinds
from aegaeon_operator.kube.leading import leading
from aegaeon_operator.kube.metrics import Metrics
from aegaeon_operator.kube.queue import Queue
from aegaeon_operator.kube.replica_spread import keep_apart
from aegaeon_operator.kube.store import Store
from aegaeon_operator.kube.watching import watch
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key
from aegaeon_operator.reconcile.cluster.names import MANAGED
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_proto.pages import Pages

_log = logging.getLogger(__name__)
_OURS = ",".join(f"{name}={value}" for name, value in MANAGED.items())
_FIRST_RETRY_S, _LONGEST_RETRY_S = 2.0, 30.0


async def run(config: OperatorConfig) -> int:
    """Run until SIGTERM (returns 0) or until the Lease is lost (1). Raises KubeError without a cluster."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics()
    metrics.workers.set(config.workers)
    lease = LeaseSettings(config.platform.namespace, config.holder)
    async with (
        _health(config.platform, config.health_port),
        _scraped(config.platform, config.metrics_port, metrics),
        connect(metrics.called) as cluster,
        leading(lease, metrics.called) as lead,
    ):
        if (ended := await _first(stop.wait(), lead.over.wait(), lead.won.wait())) < 2:
            return ended
        metrics.leads.set(1)
        return await _first(stop.wait(), lead.over.wait(), _work(config, cluster, metrics))


async def _work(config: OperatorConfig, cluster: Cluster, metrics: Metrics) -> None:
    store = Store()
    controller = Controller(cluster, store, config.platform, metrics=metrics, namespaces=config.namespaces)

    async def reconcile(key: Key) -> float:
        with metrics.look(key):
            return await controller.reconcile(key)

    queue = Queue(reconcile, config.workers)
    metrics.queue_length.set_function(lambda: queue.length)
    metrics.running.set_function(lambda: queue.running)
    controller.look_at = lambda keys: queue.add(keys, 0.0)
    kinds = Kinds(cluster, [resource for resource, _ in _selected(config)], config.discover_s)

    async def relist() -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                await kinds.listed(await list_all(config, cluster, store, queue))
                metrics.all_listed()
                return
            except KubeError as error:
                _log.warning("list failed: %s; retry in %g s", error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    await relist()  # reconciles start after the first complete list
    watched = _watch_known(config, store, queue, metrics, kinds, relist)
    try:
        spread = keep_apart(cluster, controller.relocations, config.platform.namespace, config.holder)
        await _first(watched, queue.run(), _list_again(config, kinds, relist), controller.secrets.run(), spread)
    finally:
        await controller.close()


async def list_all(config: OperatorConfig, cluster: Cluster, store: Store, queue: Queue) -> frozenset[Resource]:
    """List everything; return the kinds that the API server serves. An error of a kind does not affect the others:
    their changes are queued before KubeError is raised, since the next list would not show them as changes."""
    changed, known, failed = set[Key](), set[Resource](), list[KubeError]()
    try:
        for resource, labels in _selected(config):
            for namespace in config.namespaces or (None,):
                try:
                    listed = await cluster.list(resource, namespace, labels)
                except KubeError as error:
                    if not error.status:  # no answer: the next kind would time out, too
                        raise
                    failed.append(error)
                    continue
                known |= {resource} if listed is not UNKNOWN else set()
                changed |= {key for body in listed.items for key in store.put(body)}
                present = (ChildKey.of(body) for body in listed.items)
                changed |= store.keep_only(resource.kind, namespace, present, listed.version)
    finally:
        queue.add(changed)
    if failed:
        raise failed[0]
    return frozenset(known)


def _selected(config: OperatorConfig) -> list[tuple[Resource, str]]:
    """Return the listed and watched resources with their label selectors."""
    return [(GPU_POOLS, ""), (MODEL_POOLS, ""), *((resource, _OURS) for resource in labelled(config.platform))]


async def _list_again(config: OperatorConfig, kinds: Kinds, relist: Callable[[], Awaitable[None]]) -> None:
    """List periodically, and as soon as the API server serves another kind."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(config.relist_s):
                await kinds.defined()
        await relist()


async def _watch_known(
    config: OperatorConfig,
    store: Store,
    queue: Queue,
    metrics: Metrics,
    kinds: Kinds,
    relist: Callable[[], Awaitable[None]],
) -> None:
    """Watch the known kinds; restart when lists find other kinds, and with a list after a watch has ended."""

    def changed(event: str, body: Json) -> None:
        metrics.event(body["kind"])
        queue.add(store.remove(body) if event == "DELETED" else store.put(body))

    while True:
        known = kinds.known
        metrics.watching(kinds.all, known)
        selected = [(resource, labels) for resource, labels in _selected(config) if resource in known]
        try:
            await _first(watch(selected, config.namespaces, changed), kinds.other_than(known))
        except KubeError as error:
            _log.warning("%s: listing everything again", error)
            await asyncio.sleep(_FIRST_RETRY_S)
            await relist()


async def _first(*awaitables: Any) -> int:
    """Return the index of the first that ends, after cancelling the others; raise its error."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return next(place for place, task in enumerate(tasks) if task in done)


@contextlib.asynccontextmanager
async def _health(platform: Platform, port: int) -> AsyncIterator[None]:
    """Serve /healthz: 200 while the loop runs, on the leader and on a standby."""
    if not port:
        yield
        return

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.router.add_get("/healthz", healthy)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, platform.anywhere.strip("[]"), port).start()
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _scraped(platform: Platform, port: int, metrics: Metrics) -> AsyncIterator[None]:
    """Serve metrics on a port of their own, since they name tenants' objects. Raises SettingsError."""
    if not port:
        yield
        return
    pages = Pages(f"{platform.anywhere}:{port}", lambda: True, "", metrics.render)
    try:
        await pages.start()
    except OSError as error:
        raise SettingsError(f"AEGAEON_METRICS_PORT: {error}") from error
    try:
        yield
    finally:
        await pages.stop()
