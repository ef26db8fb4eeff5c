"""Writes the differences of a pool's children. An object that is refused, or reverted by another manager, is retried
with backoff without affecting the others: a tenant's wrong route does not delay the other tenants."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, NOT_FOUND, NOT_OURS, Cluster
from aegaeon_operator.kube.compare import is_up_to_date
from aegaeon_operator.kube.events import post
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json
from aegaeon_operator.reconcile.cluster.names import APPLIED, fingerprint
from aegaeon_operator.reconcile.cluster.ownership import subject_of

_log = logging.getLogger(__name__)
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A failed write. `refusal`: the error; "" if it was accepted but differs from the manifest."""

    mark: str
    again: float
    delay_s: float
    refusal: str


class Writer:
    """The writer of one pool. `clock` is monotonic, in seconds."""

    def __init__(self, cluster: Cluster, store: Store, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._troubles: dict[ChildKey, _Trouble] = {}
        self._up_to_date: dict[ChildKey, tuple[str, str]] = {}

    async def write(self, desired: Desired, children: Mapping[ChildKey, Json]) -> dict[ChildKey, str]:
        """Write the differences; return refusals by object. Raises KubeError when the API server is unavailable."""
        targets: dict[ChildKey, Json | None] = {ChildKey.of(manifest): manifest for manifest in desired.manifests}
        targets |= dict.fromkeys(desired.leftovers)
        remembered: tuple[dict[ChildKey, Any], ...] = (self._troubles, self._up_to_date)
        for memory in remembered:
            for key in memory.keys() - targets.keys():
                del memory[key]
        for key, manifest in targets.items():
            await self._look(key, manifest, children.get(key))
        return {key: trouble.refusal for key, trouble in self._troubles.items() if trouble.refusal}

    def again_in(self) -> float:
        """Return the seconds until the next retry; infinity without one."""
        return min((trouble.again - self._clock() for trouble in self._troubles.values()), default=float("inf"))

    async def _look(self, key: ChildKey, manifest: Json | None, live: Json | None) -> None:
        if self._is_up_to_date(key, manifest, live) if manifest else _goes(live):
            self._troubles.pop(key, None)
            return
        mark, before = fingerprint(manifest), self._troubles.get(key)
        if before and before.mark == mark and self._clock() < before.again:
            return
        try:
            up_to_date, refusal = await self._write(key, manifest, live), ""
        except KubeError as error:
            if error.is_unavailable:
                raise
            # A conflict of an owned object means that it changed since it was read; the watch brings the change.
            up_to_date, refusal = False, "" if live and error.status == CONFLICT else _explained(error)
            _log.warning("%s %s/%s: %s", *key, refusal or error)
        if up_to_date:
            self._troubles.pop(key, None)
            return
        delay_s = min(2 * before.delay_s, _LONGEST_RETRY_S) if before and before.mark == mark else _FIRST_RETRY_S
        self._troubles[key] = _Trouble(mark, self._clock() + delay_s, delay_s, refusal)

    def _is_up_to_date(self, key: ChildKey, manifest: Json, live: Json | None) -> bool:
        """Return whether an object matches its manifest; the result is cached until either changes."""
        if live is None:
            return False
        state = (
            manifest["metadata"].get("annotations", {}).get(APPLIED, ""),
            live["metadata"].get("resourceVersion", ""),
        )
        if all(state) and self._up_to_date.get(key) == state:
            return True
        up_to_date = is_up_to_date(live, manifest)
        if up_to_date:
            self._up_to_date[key] = state
        return up_to_date

    async def _write(self, key: ChildKey, manifest: Json | None, live: Json | None) -> bool:
        """Write an object; return whether it matches the manifest. Only owned objects are overwritten."""
        if manifest is None:
            if live is not None:
                await self._delete(key, live, "the spec no longer needs it")
            return True
        live = live or await self._cluster.claim(manifest)
        if live is not None and live.get("roleRef") != manifest.get("roleRef"):
            await self._delete(key, live, "it is created again with another role, which a RoleBinding cannot change")
            live = None
        answer = await self._cluster.apply(_onto(manifest, live), force=live is not None)
        self._store.put(answer)
        return is_up_to_date(answer, manifest)

    async def _delete(self, key: ChildKey, live: Json, why: str) -> None:
        await self._cluster.delete(live)
        _log.info("deleted %s %s/%s: %s", *key, why)
        if about := subject_of(live):
            await post(self._cluster, about, "Deleted", f"deleted {key.kind} {key.name}: {why}")


def _onto(manifest: Json, live: Json | None) -> Json:
    """Return the manifest with the object's uid: applying it is a conflict if another object has taken the name."""
    if live is None:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "uid": live["metadata"]["uid"]}}


def _goes(live: Json | None) -> bool:
    return live is None or "deletionTimestamp" in live["metadata"]


def _explained(error: KubeError) -> str:
    if error.status == NOT_FOUND:
        return f"the cluster does not serve this kind, or the namespace does not exist: {error}"
    if error.status == CONFLICT and str(error) != NOT_OURS:
        return f"{NOT_OURS} ({error})"
    return str(error)
