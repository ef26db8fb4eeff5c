"""What is known of the cluster: kept as text, since thousands of parsed objects would take ten times the memory.

It is filled by lists and by watches; the newer resourceVersion wins, so their order does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key
from aegaeon_operator.reconcile.cluster.names import POOL_NAMESPACE

_DROPPED = ("managedFields",)


class Store:
    """Objects by kind, namespace and name, and which pool each belongs to."""

    def __init__(self) -> None:
        self._texts: dict[ChildKey, tuple[int, str, Key | None]] = {}
        self._of_pool: dict[Key, set[ChildKey]] = {}

    def put(self, body: Mapping[str, Any]) -> set[Key]:
        """Take an object in; returns the pools that it matters to, none when it is no news."""
        key, version = ChildKey.of(body), int(body["metadata"].get("resourceVersion") or 0)
        old = self._texts.get(key)
        if old and old[0] >= version:
            return set()
        pool = _pool_of(body)
        self._forget(key)
        metadata = {name: value for name, value in body["metadata"].items() if name not in _DROPPED}
        self._texts[key] = (version, json.dumps({**body, "metadata": metadata}), pool)
        if pool:
            self._of_pool.setdefault(pool, set()).add(key)
        return {one for one in (pool, old[2] if old else None) if one}

    def remove(self, key: ChildKey) -> set[Key]:
        """It is gone; returns the pools that it mattered to."""
        pool = self._forget(key)
        return {pool} if pool else set()

    def keep_only(self, kind: str, names: Iterable[ChildKey]) -> set[Key]:
        """After a list: forget what is not in it."""
        there = set(names)
        gone = [key for key in self._texts if key.kind == kind and key not in there]
        return {pool for key in gone for pool in self.remove(key)}

    def get(self, key: ChildKey) -> Json | None:
        """One object."""
        found = self._texts.get(key)
        return json.loads(found[1]) if found else None

    def of_pool(self, pool: Key) -> list[Json]:
        """Everything that belongs to a pool: itself, its ModelPools, its children."""
        return [json.loads(self._texts[key][1]) for key in sorted(self._of_pool.get(pool, ()))]

    def _forget(self, key: ChildKey) -> Key | None:
        _, _, pool = self._texts.pop(key, (0, "", None))
        if pool:
            self._of_pool[pool].discard(key)
            if not self._of_pool[pool]:
                del self._of_pool[pool]
        return pool


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
