"""Write what differs of a pool's children. What is refused, or changed back at once by others, is tried again ever less
often, and the rest goes on: one route that a tenant got wrong costs the other tenants nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, NOT_FOUND, NOT_OURS, Cluster
from aegaeon_operator.kube.compare import as_wanted
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
    """What came of the last try to write something: `refusal`, empty where it was taken but is not as we said."""

    said: str
    again: float
    delay_s: float
    refusal: str


class Writer:
    """Of one pool. `clock` is monotonic, in seconds."""

    def __init__(self, cluster: Cluster, store: Store, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._store = store
        self._clock = clock
        self._troubles: dict[ChildKey, _Trouble] = {}
        self._up_to_date: dict[ChildKey, tuple[str, str]] = {}

    async def write(self, wanted: Desired, children: Mapping[ChildKey, Json]) -> dict[ChildKey, str]:
        """Returns what is refused, and why. Raises KubeError when the API server is unavailable."""
        wants: dict[ChildKey, Json | None] = {ChildKey.of(one): one for one in wanted.manifests}
        wants |= dict.fromkeys(wanted.leftovers)
        remembered: tuple[dict[ChildKey, Any], ...] = (self._troubles, self._up_to_date)
        for memory in remembered:
            for key in memory.keys() - wants.keys():
                del memory[key]
        for key, manifest in wants.items():
            await self._look(key, manifest, children.get(key))
        return {key: one.refusal for key, one in self._troubles.items() if one.refusal}

    def again_in(self) -> float:
        """Seconds until something is to be tried again; for ever when nothing is."""
        return min((one.again - self._clock() for one in self._troubles.values()), default=float("inf"))

    async def _look(self, key: ChildKey, manifest: Json | None, live: Json | None) -> None:
        if self._is_up_to_date(key, manifest, live) if manifest else _goes(live):
            self._troubles.pop(key, None)
            return
        said, before = fingerprint(manifest), self._troubles.get(key)
        if before and before.said == said and self._clock() < before.again:
            return
        try:
            up_to_date, refusal = await self._write(key, manifest, live), ""
        except KubeError as error:
            if error.is_unavailable:
                raise
            # Of what is ours a conflict says that it has changed since it was seen: the watch brings how.
            up_to_date, refusal = False, "" if live and error.status == CONFLICT else _explained(error)
            _log.warning("%s %s/%s: %s", *key, refusal or error)
        if up_to_date:
            self._troubles.pop(key, None)
            return
        delay_s = min(2 * before.delay_s, _LONGEST_RETRY_S) if before and before.said == said else _FIRST_RETRY_S
        self._troubles[key] = _Trouble(said, self._clock() + delay_s, delay_s, refusal)

    def _is_up_to_date(self, key: ChildKey, manifest: Json, live: Json | None) -> bool:
        """Whether it is as wanted: looked at again when either has changed."""
        if live is None:
            return False
        state = (
            manifest["metadata"].get("annotations", {}).get(APPLIED, ""),
            live["metadata"].get("resourceVersion", ""),
        )
        if all(state) and self._up_to_date.get(key) == state:
            return True
        up_to_date = as_wanted(live, manifest)
        if up_to_date:
            self._up_to_date[key] = state
        return up_to_date

    async def _write(self, key: ChildKey, manifest: Json | None, live: Json | None) -> bool:
        """Whether it matches the desired state. What is ours is forced; what another owner has is left alone."""
        if manifest is None:
            if live is not None:
                await self._delete(key, live, "nothing in the spec asks for it")
            return True
        live = live or await self._cluster.claim(manifest)
        if live is not None and live.get("roleRef") != manifest.get("roleRef"):
            await self._delete(key, live, "it is made again with another role, which a RoleBinding cannot change")
            live = None
        answer = await self._cluster.apply(_onto(manifest, live), force=live is not None)
        self._store.put(answer)
        return as_wanted(answer, manifest)

    async def _delete(self, key: ChildKey, live: Json, why: str) -> None:
        await self._cluster.delete(live)
        _log.info("%s %s/%s is deleted: %s", *key, why)
        if about := subject_of(live):
            await post(self._cluster, about, "Deleted", f"{key.kind} {key.name} is deleted: {why}")


def _onto(manifest: Json, live: Json | None) -> Json:
    """The manifest for this object alone: a conflict where another one has taken its name."""
    if live is None:
        return manifest
    return {**manifest, "metadata": {**manifest["metadata"], "uid": live["metadata"]["uid"]}}


def _goes(live: Json | None) -> bool:
    return live is None or "deletionTimestamp" in live["metadata"]


def _explained(error: KubeError) -> str:
    if error.status == NOT_FOUND:
        return f"not known to this cluster: {error}"
    if error.status == CONFLICT and str(error) != NOT_OURS:
        return f"{NOT_OURS} ({error})"
    return str(error)
