"""Writes the statuses of a pool's objects, and an Event for every transition that concerns users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, NOT_FOUND, Cluster
from aegaeon_operator.kube.events import post
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.conditions import is_due, is_written, notes
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key, Report, Subject
from aegaeon_operator.spec.resources import API_VERSION

_AT_ONCE = 16  # concurrent writes


@dataclass(slots=True)
class _Batch:
    """A batch of due reports, shared by several writers, with the errors."""

    due: Iterator[Report]
    changed: Callable[[Collection[Key]], None]
    refused: list[str] = field(default_factory=list)
    away: KubeError | None = None


class Statuses:
    """The statuses of one pool. `clock` is monotonic, in seconds."""

    def __init__(self, cluster: Cluster, store: Store, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._written: dict[str, float] = {}
        self._current: dict[str, Report] = {}
        """reports that the objects have; that of an object that did not change is the same in the next reconcile"""

    async def write(self, reports: list[Report], changed: Callable[[Collection[Key]], None]) -> None:
        """Write due statuses concurrently; an error does not affect the others. Raises KubeError with all errors.
        `changed` is called with the pools of an object that changed after it was read: the watch's event for that
        change is older than the answer to the write, so it is ignored.
        """
        present = {report.about.uid for report in reports}
        self._written = {uid: at for uid, at in self._written.items() if uid in present}
        self._current = {report.about.uid: report for report in reports if self._is_written(report)}
        batch = _Batch(iter([report for report in reports if self._is_due(report)]), changed)
        await asyncio.gather(*(self._write_due(batch) for _ in range(_AT_ONCE)))
        if batch.away:
            raise batch.away
        if batch.refused:
            raise KubeError(0, "; ".join(batch.refused))

    def _is_written(self, report: Report) -> bool:
        return self._current.get(report.about.uid) is report or is_written(report)

    def _is_due(self, report: Report) -> bool:
        uid = report.about.uid
        return uid not in self._current and is_due(report, self._written.get(uid), self._clock())

    async def _write_due(self, batch: _Batch) -> None:
        for report in batch.due:
            try:
                batch.changed(await self._write(report))
            except KubeError as error:
                if error.is_unavailable:  # the other writes would time out, too
                    batch.away = error
                batch.refused.append(f"status of {report.about.kind} {report.about.name}: {error}")
            if batch.away:
                return

    async def _write(self, report: Report) -> set[Key]:
        now = self._clock()
        about = report.about
        head = {"apiVersion": API_VERSION, "kind": about.kind}
        metadata = {"namespace": about.namespace, "name": about.name, "uid": about.uid}
        try:
            answer = await self._cluster.apply({**head, "metadata": metadata, "status": report.status}, "status")
        except KubeError as error:
            if error.status in (NOT_FOUND, CONFLICT):  # deleted meanwhile, or replaced by another object of that name
                return set()
            raise
        self._written[about.uid] = now
        changed = self._store.put_status(answer)
        for note in notes(report):
            subject = Subject(ChildKey(about.kind, about.namespace, about.name), about.uid)
            await post(self._cluster, subject, note.reason, note.message, note.warning)
        return changed
