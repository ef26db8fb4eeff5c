"""Write the statuses of a pool's objects, and an Event for every transition that concerns a user."""

from __future__ import annotations

from collections.abc import Callable, Collection

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, NOT_FOUND, Cluster
from aegaeon_operator.kube.events import post
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.conditions import is_due, notes
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key, Report, Subject
from aegaeon_operator.spec.resources import API_VERSION


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
            subject = Subject(ChildKey(about.kind, about.namespace, about.name), about.uid)
            await post(self._cluster, subject, note.reason, note.message, note.warning)
        return changed
