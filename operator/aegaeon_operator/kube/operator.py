"""The whole operator: lead, list, watch with kopf, work.

kopf watches and reconnects; its handlers only note what changed. It keeps nothing on objects: no finalizer (children go
by their owner references, pods drain by themselves), no annotation, no status of its own.
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
from aegaeon_operator.kube.spare import keep_apart
from aegaeon_operator.kube.store import Store
from aegaeon_operator.kube.watching import watch
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Platform
from aegaeon_operator.reconcile.cluster.names import MANAGED
from aegaeon_proto.pages import Pages

_log = logging.getLogger(__name__)
_OURS = ",".join(f"{name}={value}" for name, value in MANAGED.items())
_FIRST_RETRY_S, _LONGEST_RETRY_S = 2.0, 30.0


async def run(config: OperatorConfig) -> int:
    """Until SIGTERM (0), or until the lease is lost (1). Raises KubeError when there is no cluster."""
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

    async def list_anew() -> None:
        delay_s = _FIRST_RETRY_S
        while True:
            try:
                await kinds.listed(await list_all(config, cluster, store, queue))
                metrics.all_listed()
                return
            except KubeError as error:
                _log.warning("listing: %s; again in %g s", error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _LONGEST_RETRY_S)

    await list_anew()  # nothing is decided before the first list is complete
    watched = _watch_known(config, store, queue, metrics, kinds, list_anew)
    try:
        spare = keep_apart(cluster, controller.moves, config.platform.namespace, config.holder)
        await _first(watched, queue.run(), _list_again(config, kinds, list_anew), controller.secrets.run(), spare)
    finally:
        await controller.close()


async def list_all(config: OperatorConfig, cluster: Cluster, store: Store, queue: Queue) -> frozenset[Resource]:
    """Everything anew; the kinds that the API server knows. One kind that cannot be listed holds up no other: what was
    learned counts before KubeError is raised, since the next list would find it no news."""
    changed, known, failed = set[Key](), set[Resource](), list[KubeError]()
    try:
        for resource, labels in _selected(config):
            for namespace in config.namespaces or (None,):
                try:
                    found = await cluster.list(resource, namespace, labels)
                except KubeError as error:
                    if not error.status:  # there is no answer, and the next kind would wait for one as long
                        raise
                    failed.append(error)
                    continue
                known |= {resource} if found is not UNKNOWN else set()
                changed |= {key for one in found.items for key in store.put(one)}
                there = (ChildKey.of(one) for one in found.items)
                changed |= store.keep_only(resource.kind, namespace, there, found.version)
    finally:
        queue.add(changed)
    if failed:
        raise failed[0]
    return frozenset(known)


def _selected(config: OperatorConfig) -> list[tuple[Resource, str]]:
    """What is listed and watched, and by which labels."""
    return [(GPU_POOLS, ""), (MODEL_POOLS, ""), *((one, _OURS) for one in labelled(config.platform))]


async def _list_again(config: OperatorConfig, kinds: Kinds, list_anew: Callable[[], Awaitable[None]]) -> None:
    """Now and then, and as soon as the API server knows another kind."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(config.relist_s):
                await kinds.defined()
        await list_anew()


async def _watch_known(
    config: OperatorConfig,
    store: Store,
    queue: Queue,
    metrics: Metrics,
    kinds: Kinds,
    list_anew: Callable[[], Awaitable[None]],
) -> None:
    """Begins anew when lists have found other kinds than it watches, and with a list when a watch has ended."""

    def heard(what: str, body: Json) -> None:
        metrics.event(body["kind"])
        queue.add(store.remove(body) if what == "DELETED" else store.put(body))

    while True:
        known = kinds.known
        metrics.watching(kinds.all, known)
        selected = [(resource, labels) for resource, labels in _selected(config) if resource in known]
        try:
            await _first(watch(selected, config.namespaces, heard), kinds.other_than(known))
        except KubeError as error:
            _log.warning("%s: everything is listed again", error)
            await asyncio.sleep(_FIRST_RETRY_S)
            await list_anew()


async def _first(*works: Any) -> int:
    """The place of the one that ends first; the rest is cancelled. An error of any comes through."""
    tasks = [asyncio.ensure_future(one) for one in works]
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
    """200 while the loop runs: a standby is as healthy as the leader."""
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
    """On a port of its own: any client may ask for health, but metrics name tenants' objects. Raises SettingsError."""
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
