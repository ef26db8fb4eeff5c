"""A cache of the cluster's objects, kept as text, since thousands of parsed objects take ten times the memory.

Lists, watches and answers to writes fill it in any order, since the newer resourceVersion wins: an outdated list
neither restores deleted objects nor removes new ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key
from aegaeon_operator.reconcile.cluster.names import POOL_NAMESPACE

_DROPPED = ("managedFields",)
_NOT_MADE = ("GpuPool", "ModelPool", "Pod")


class Store:
    """Objects by kind, namespace and name, with the pool of each."""

    def __init__(self) -> None:
        self._texts: dict[ChildKey, tuple[int, str, Key | None]] = {}
        self._gone: dict[ChildKey, int] = {}
        self._of_pool: dict[Key, set[ChildKey]] = {}

    def put(self, body: Mapping[str, Any]) -> set[Key]:
        """Store an object; return the pools that it affects, none if it is not newer."""
        key, version = ChildKey.of(body), _version(body["metadata"])
        old = self._texts.get(key)
        if (old and old[0] >= version) or self._gone.get(key, -1) >= version:
            return set()
        pool = _pool_of(body)
        self._forget(key)
        metadata = {name: value for name, value in body["metadata"].items() if name not in _DROPPED}
        self._texts[key] = (version, json.dumps({**body, "metadata": metadata}), pool)
        if pool:
            self._of_pool.setdefault(pool, set()).add(key)
        return {key for key in (pool, old[2] if old else None) if key}

    def put_status(self, body: Mapping[str, Any]) -> set[Key]:
        """Store the answer to a write of a status; return the pools that it affects if more than the status changed."""
        old, pools = self.get(ChildKey.of(body)), self.put(body)
        return pools if old is None or _without_status(old) != _without_status(body) else set()

    def remove(self, body: Mapping[str, Any]) -> set[Key]:
        """Remove a deleted object, given its last state; return the pools that it affected.

        A newer object of the same name stays: events of two objects come in any order.
        """
        key, version = ChildKey.of(body), _version(body["metadata"])
        self._gone[key] = max(version, self._gone.get(key, 0))
        return self._gone_at(key, version)

    def keep_only(self, kind: str, namespace: str | None, names: Iterable[ChildKey], version: int) -> set[Key]:
        """Remove objects that a list of a namespace (None: all) at a version does not have, unless they are newer."""
        present = set(names)

        def listed(key: ChildKey) -> bool:
            return key.kind == kind and namespace in (None, key.namespace)

        for key in [key for key, at in self._gone.items() if listed(key) and at <= version]:
            del self._gone[key]  # later lists are no older
        gone = [key for key in self._texts if listed(key) and key not in present]
        return {pool for key in gone for pool in self._gone_at(key, version)}

    def _gone_at(self, key: ChildKey, version: int) -> set[Key]:
        if self._texts.get(key, (version + 1,))[0] > version:
            return set()
        pool = self._forget(key)
        return {pool} if pool else set()

    def get(self, key: ChildKey) -> Json | None:
        """Return an object; None if it does not exist."""
        entry = self._texts.get(key)
        return json.loads(entry[1]) if entry else None

    def of_pool(self, pool: Key) -> list[Json]:
        """Return all objects of a pool: itself, its ModelPools, its children."""
        return [json.loads(self._texts[key][1]) for key in sorted(self._of_pool.get(pool, ()))]

    def texts_of(self, pool: Key) -> list[tuple[ChildKey, int, str]]:
        """Return all objects of a pool with their versions, as text."""
        return [(key, *self._texts[key][:2]) for key in sorted(self._of_pool.get(pool, ()))]

    def children_of(self, pool: Key) -> list[Json]:
        """Return the objects that the operator created for a pool."""
        keys = sorted(self._of_pool.get(pool, ()))
        return [json.loads(self._texts[key][1]) for key in keys if key.kind not in _NOT_MADE]

    def _forget(self, key: ChildKey) -> Key | None:
        _, _, pool = self._texts.pop(key, (0, "", None))
        if pool:
            self._of_pool[pool].discard(key)
            if not self._of_pool[pool]:
                del self._of_pool[pool]
        return pool


def _without_status(body: Mapping[str, Any]) -> Json:
    metadata = {name: value for name, value in body["metadata"].items() if name not in (*_DROPPED, "resourceVersion")}
    return {**body, "metadata": metadata, "status": None}


def _version(metadata: Mapping[str, Any]) -> int:
    return int(metadata.get("resourceVersion") or 0)


def _pool_of(body: Mapping[str, Any]) -> Key | None:
    metadata = body["metadata"]
    if body["kind"] == "GpuPool":
        return Key(metadata["namespace"], metadata["name"])
    if body["kind"] == "ModelPool":
        ref = body["spec"].get("gpuPoolRef", {})
        return Key(ref.get("namespace") or metadata["namespace"], ref.get("name", ""))
    labels = metadata.get("labels", {})
    namespace, name = labels.get(POOL_NAMESPACE), labels.get("app.kubernetes.io/instance")
    return Key(namespace, name) if namespace and name else None
