"""The whole operator: lead, list, watch with kopf, work.

kopf watches and reconnects; its handlers only note what changed. It keeps nothing on objects: no finalizer (children go
by their owner references, pods drain by themselves), no annotation, no status of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import kopf
from aiohttp import web

from aegaeon_kube.errors import KubeError
from aegaeon_kube.lease import Leadership, LeaseSettings
from aegaeon_kube.server import address_in_pod
from aegaeon_operator.config import OperatorConfig
from aegaeon_operator.errors import SettingsError
from aegaeon_operator.kube.client import GPU_POOLS, MODEL_POOLS, Cluster, connect, labelled
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.metrics import Metrics
from aegaeon_operator.kube.queue import Queue
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key
from aegaeon_operator.reconcile.cluster.names import MANAGED
from aegaeon_proto.pages import Pages

_log = logging.getLogger(__name__)
_OURS = ",".join(f"{name}={value}" for name, value in MANAGED.items())
_RETRY_S = 2.0


async def run(config: OperatorConfig) -> int:
    """Until SIGTERM (0), or until the lease is lost (1). Raises KubeError when there is no cluster."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    metrics = Metrics()
    metrics.workers.set(config.workers)
    async with _health(config.health_port), _scraped(config.metrics_port, metrics), connect(metrics.called) as cluster:
        leadership = Leadership(cluster.api, LeaseSettings(config.platform.namespace, config.holder))
        if await _first(stop.wait(), leadership.acquire()) == 0:
            return 0
        metrics.leads.set(1)
        try:
            ended = await _first(stop.wait(), leadership.keep(), _work(config, cluster, metrics))
            return 1 if ended == 1 else 0  # work ends by itself when kopf, which takes signals over, hears one
        finally:
            await leadership.release()


async def _work(config: OperatorConfig, cluster: Cluster, metrics: Metrics) -> None:
    store = Store()
    controller = Controller(cluster, store, config.platform, metrics=metrics)

    async def reconcile(key: Key) -> float:
        with metrics.look(key):
            return await controller.reconcile(key)

    queue = Queue(reconcile, config.workers)
    metrics.queue_length.set_function(lambda: queue.length)
    metrics.running.set_function(lambda: queue.running)
    controller.look_at = lambda keys: queue.add(keys, 0.0)
    while True:  # nothing is decided before the first list is complete
        try:
            await list_all(config, cluster, store, queue)
            metrics.all_listed()
            break
        except KubeError as error:
            _log.warning("listing: %s; again in %g s", error, _RETRY_S)
            await asyncio.sleep(_RETRY_S)
    try:
        again = _list_again(config, cluster, store, queue, metrics)
        await _first(_watch(config, store, queue, metrics), queue.run(), again, controller.secrets.run())
    finally:
        await controller.close()


async def list_all(config: OperatorConfig, cluster: Cluster, store: Store, queue: Queue) -> None:
    """Everything anew. What was learned before an error counts: the next list would find it no news."""
    changed = set()
    ours = labelled(config.platform)
    try:
        for resource in (GPU_POOLS, MODEL_POOLS, *ours):
            labels = _OURS if resource in ours else ""
            for namespace in config.namespaces or (None,):
                found = await cluster.list(resource, namespace, labels)
                changed |= {key for one in found.items for key in store.put(one)}
                there = (ChildKey.of(one) for one in found.items)
                changed |= store.keep_only(resource.kind, namespace, there, found.version)
    finally:
        queue.add(changed)


async def _list_again(config: OperatorConfig, cluster: Cluster, store: Store, queue: Queue, metrics: Metrics) -> None:
    while True:
        await asyncio.sleep(config.relist_s)
        try:
            await list_all(config, cluster, store, queue)
            metrics.all_listed()
        except KubeError as error:
            _log.warning("listing again: %s", error)


async def _watch(config: OperatorConfig, store: Store, queue: Queue, metrics: Metrics) -> None:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoComparison()
    settings.scanning.disabled = True  # kinds that come later are seen by the next list; no right to read CRDs needed

    async def changed(event: Any, body: Any, **_: Any) -> None:
        metrics.event(body["kind"])
        queue.add(store.remove(body) if event["type"] == "DELETED" else store.put(dict(body)))

    ours = labelled(config.platform)
    for resource in (GPU_POOLS, MODEL_POOLS, *ours):
        at = (resource.group, resource.version, resource.plural)
        kopf.on.event(*at, registry=registry, id=resource.plural)(changed)
        if resource in ours:
            settings.watching.label_selectors[at] = _OURS
    _login(registry)
    await kopf.operator(
        registry=registry,
        settings=settings,
        standalone=True,
        clusterwide=not config.namespaces,
        namespaces=config.namespaces,
    )


class _NoComparison(kopf.DiffBaseStorage):
    """Who only listens needs no difference to what was there before; finding it takes a third of kopf's time."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


def _login(registry: kopf.OperatorRegistry) -> None:
    """As our own client does: by address, so that we need no DNS; kopf's own way goes by name."""

    def in_pod(**known: Any) -> kopf.ConnectionInfo | None:
        found = kopf.login_with_service_account(**known)
        return found and replace(found, server=address_in_pod())

    kopf.on.login(registry=registry)(in_pod)
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)


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
async def _health(port: int) -> AsyncIterator[None]:
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
        await web.TCPSite(runner, "0.0.0.0", port).start()
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _scraped(port: int, metrics: Metrics) -> AsyncIterator[None]:
    """On a port of its own: any client may ask for health, but metrics name tenants' objects. Raises SettingsError."""
    if not port:
        yield
        return
    pages = Pages(f"0.0.0.0:{port}", lambda: True, "", metrics.render)
    try:
        await pages.start()
    except OSError as error:
        raise SettingsError(f"AEGAEON_METRICS_PORT: {error}") from error
    try:
        yield
    finally:
        await pages.stop()
