"""Write the statuses of a pool's objects, and an Event for every transition that concerns a user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, NOT_FOUND, Cluster
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.conditions import is_due, notes
from aegaeon_operator.reconcile.cluster.facts import Key, Note, Report
from aegaeon_operator.reconcile.cluster.names import MANAGER
from aegaeon_operator.spec.resources import API_VERSION

_log = logging.getLogger(__name__)


class Statuses:
    """Of one pool. `clock` is monotonic, in seconds."""

    def __init__(self, cluster: Cluster, store: Store, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._written: dict[str, float] = {}

    async def write(self, found: list[Report], changed: Callable[[Collection[Key]], None]) -> None:
        """Each for itself: a status that is refused holds up no other. Raises KubeError for all that are.

        `changed` is called with the pools of an object that others changed after it was read: the watch, which brings
        that change as well, brings nothing newer than the answer to the write.
        """
        there = {report.about.uid for report in found}
        self._written = {uid: at for uid, at in self._written.items() if uid in there}
        refused: list[str] = []
        for report in found:
            try:
                changed(await self._write(report))
            except KubeError as error:
                if error.is_unavailable:
                    raise
                refused.append(f"status of {report.about.kind} {report.about.name}: {error}")
        if refused:
            raise KubeError(0, "; ".join(refused))

    async def _write(self, report: Report) -> set[Key]:
        now = self._clock()
        if not is_due(report, self._written.get(report.about.uid), now):
            return set()
        about = report.about
        head = {"apiVersion": API_VERSION, "kind": about.kind}
        metadata = {"namespace": about.namespace, "name": about.name, "uid": about.uid}
        try:
            answer = await self._cluster.apply({**head, "metadata": metadata, "status": report.status}, "status")
        except KubeError as error:
            if error.status in (NOT_FOUND, CONFLICT):  # gone meanwhile, or another object of that name
                return set()
            raise
        self._written[about.uid] = now
        changed = self._store.put_status(answer)
        for note in notes(report):
            try:
                await self._post(note)
            except KubeError as error:  # what it tells stands in the status, too
                _log.info("%s %s/%s: no Event: %s", about.kind, about.namespace, about.name, error)
        return changed

    async def _post(self, note: Note) -> None:
        about, now = note.about, datetime.now(UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        await self._cluster.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"generateName": f"{about.name}-", "namespace": about.namespace},
                "involvedObject": {
                    "apiVersion": API_VERSION,
                    "kind": about.kind,
                    "namespace": about.namespace,
                    "name": about.name,
                    "uid": about.uid,
                },
                "type": "Warning" if note.warning else "Normal",
                "reason": note.reason,
                "message": note.message[:1024],
                "source": {"component": MANAGER},
                "firstTimestamp": stamp,
                "lastTimestamp": stamp,
                "count": 1,
            }
        )
