"""Watches of objects with kopf, which reconnects, lists again and paces itself.

kopf runs in a thread with a loop of its own, since it cancels all later tasks of its loop when it ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import kopf

from aegaeon_kube.errors import KubeError
from aegaeon_kube.server import address_in_pod
from aegaeon_operator.kube.client import Resource
from aegaeon_operator.reconcile.cluster.facts import Json

_KOPF = logging.getLogger("kopf")
OnChange = Callable[[str, Json], None]


async def watch(resources: Iterable[tuple[Resource, str]], namespaces: tuple[str, ...], on_change: OnChange) -> None:
    """Watch until cancelled. `resources` with a label selector each; no `namespaces`: all.
    `on_change` is called in this loop with the event type (DELETED or another) and the object. Raises KubeError when a
    watch has ended permanently, as after the deletion of a definition.
    """
    loop, stop, failed = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    async def changed(event: Any, body: Any, **_: Any) -> None:
        loop.call_soon_threadsafe(on_change, event["type"], dict(body))

    registry, settings = _settings(resources, changed)

    def work() -> None:
        watching = kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )
        asyncio.run(watching)

    failures = _Failures(lambda: loop.call_soon_threadsafe(failed.set))
    _KOPF.addHandler(failures)
    thread, broken = asyncio.ensure_future(asyncio.to_thread(work)), asyncio.ensure_future(failed.wait())
    try:
        await asyncio.wait([thread, broken], return_when=asyncio.FIRST_COMPLETED)
    finally:
        broken.cancel()
        stop.set()
        await asyncio.wait([thread])
        _KOPF.removeHandler(failures)
        why = thread.exception()  # the watcher's error
    raise KubeError(0, f"a watch has ended: {why or 'kopf has'}")


class _Failures(logging.Handler):
    """A log handler that detects a failed watcher, which kopf reports only in its log."""

    def __init__(self, failed: Callable[[], object]) -> None:
        super().__init__(logging.ERROR)
        self._failed = failed

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._failed()


def _settings(
    resources: Iterable[tuple[Resource, str]], changed: Callable[..., Any]
) -> tuple[kopf.OperatorRegistry, kopf.OperatorSettings]:
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoComparison()
    settings.scanning.disabled = True  # `Kinds` discovers new kinds without permission to read CRDs
    for resource, labels in resources:
        at = (resource.group, resource.version, resource.plural)
        kopf.on.event(*at, registry=registry, id=resource.plural)(changed)
        settings.watching.label_selectors.update({at: labels} if labels else {})
    _login(registry)
    return registry, settings


class _NoComparison(kopf.DiffBaseStorage):
    """A storage without content: the operator does not use kopf's differences, which take a third of kopf's time."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


def _login(registry: kopf.OperatorRegistry) -> None:
    """Log in as the operator's own client does: by address, which needs no DNS; kopf's default uses a name."""

    def in_pod(**known: Any) -> kopf.ConnectionInfo | None:
        info = kopf.login_with_service_account(**known)
        return info and replace(info, server=address_in_pod())

    kopf.on.login(registry=registry)(in_pod)
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
