"""What happens to objects, as kopf watches it: it connects again, lists anew and paces itself.

It runs in a thread with a loop of its own: at its end it cancels every task of its loop that began after it.
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
Heard = Callable[[str, Json], None]


async def watch(resources: Iterable[tuple[Resource, str]], namespaces: tuple[str, ...], heard: Heard) -> None:
    """Until cancelled. `resources` with a selector of labels each; no `namespaces`: all.

    `heard` is called in this loop, with what happened (DELETED, or another word) and the object. Raises KubeError when
    a watch has ended for good, as after the deletion of a definition.
    """
    loop, stop, failed = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    async def changed(event: Any, body: Any, **_: Any) -> None:
        loop.call_soon_threadsafe(heard, event["type"], dict(body))

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
        why = thread.exception()  # it ends with that of the watcher
    raise KubeError(0, f"a watch has ended: {why or 'kopf has'}")


class _Failures(logging.Handler):
    """kopf goes on without a watcher that has failed, and says so in its log alone."""

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
    settings.scanning.disabled = True  # `Kinds` looks for those that come later; no right to read CRDs needed
    for resource, labels in resources:
        at = (resource.group, resource.version, resource.plural)
        kopf.on.event(*at, registry=registry, id=resource.plural)(changed)
        settings.watching.label_selectors.update({at: labels} if labels else {})
    _login(registry)
    return registry, settings


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
