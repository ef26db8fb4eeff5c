"""Gather: from objects as the API server has them to the facts that decisions are made from."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from aegaeon_operator.reconcile.cluster.attach import secrets_of
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Live, Observed, Platform, Workload
from aegaeon_operator.reconcile.cluster.ownership import owned
from aegaeon_operator.spec.explain import explain
from aegaeon_operator.spec.resources import GpuPool, ModelPool

_KINDS: dict[str, type[GpuPool] | type[ModelPool]] = {"GpuPool": GpuPool, "ModelPool": ModelPool}
_WORKLOADS = ("Deployment", "StatefulSet")


def observe(key: Key, objects: Iterable[Json], now: datetime, platform: Platform) -> Observed:
    """Of everything that belongs to the pool. What is on its way out counts as gone, children excepted.

    Its pods are in its namespace: anybody may give the labels to one of another namespace.
    """
    known = list(objects)
    there = [live(one) for one in known if one["kind"] in _KINDS and "deletionTimestamp" not in one["metadata"]]
    return _observed(key, there, [one for one in known if one["kind"] not in _KINDS], now, platform)


def _observed(
    key: Key, there: Sequence[Live[Any]], rest: Iterable[Json], now: datetime, platform: Platform
) -> Observed:
    pool = next((one for one in there if one.kind == "GpuPool"), None)
    model_pools = tuple(one for one in there if one.kind == "ModelPool")
    others = list(rest)
    children = [one for one in others if one["kind"] != "Pod"]
    pods = tuple(one for one in others if one["kind"] == "Pod" and one["metadata"]["namespace"] == key.namespace)
    return with_children(Observed(key, now, platform, pool, model_pools, pods=pods), children)


@dataclass(slots=True)
class Lives:
    """GpuPools and ModelPools of one pool as they were last read: a look parses and validates what has changed."""

    _known: dict[ChildKey, tuple[int, Live[Any] | None]] = field(default_factory=dict)

    def observe(
        self, key: Key, texts: Iterable[tuple[ChildKey, int, str]], now: datetime, platform: Platform
    ) -> Observed:
        """As `observe` of the same objects, which are given with their versions."""
        before, self._known = self._known, {}
        children: list[Json] = []
        for one, version, text in texts:
            if one.kind not in _KINDS:
                children.append(json.loads(text))
                continue
            known = before.get(one)
            same = known is not None and known[0] == version
            self._known[one] = known if known and same else (version, _read(json.loads(text), known and known[1]))
        return _observed(key, [one for _, one in self._known.values() if one], children, now, platform)


def _read(body: Json, before: Live[Any] | None) -> Live[Any] | None:
    """None for one that is on its way out. A status alone is not validated."""
    metadata = body["metadata"]
    if "deletionTimestamp" in metadata:
        return None
    if before is None or before.value is None:
        return live(body)
    version = metadata["uid"], metadata.get("generation", 1), metadata.get("labels", {})
    if version != (before.uid, before.generation, before.value.metadata.labels):
        return live(body)
    return replace(before, status=body.get("status") or {})


def with_children(observed: Observed, objects: Iterable[Json]) -> Observed:
    """The same with those of the objects that it owns as its children; what their statuses say is read here."""
    pools: list[Live[Any]] = [*([observed.gpu_pool] if observed.gpu_pool else []), *observed.model_pools]
    children = {ChildKey.of(one): one for one in owned(pools, objects)}
    workloads = {key: Workload.of(one) for key, one in children.items() if key.kind in _WORKLOADS}
    return replace(observed, children=children, workloads=workloads)


def live(body: Json) -> Live[Any]:
    """A GpuPool or ModelPool. One that an older schema let in, and ours does not, says so in its status."""
    kind, metadata = _KINDS[body["kind"]], body["metadata"]
    problems: tuple[str, ...] = ()
    value = None
    try:
        known = {name: metadata[name] for name in ("name", "namespace", "labels") if name in metadata}
        fields = {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": known, "spec": body["spec"]}
        value = kind.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        problems = tuple(explain(error, kind))
    return Live(
        kind=body["kind"],
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        created=metadata["creationTimestamp"],
        value=value,
        status=body.get("status") or {},
        problems=problems,
    )


def named_secrets(observed: Observed) -> set[tuple[str, str]]:
    """Namespace and name of every Secret that ModelPools of the pool name."""
    return {(one.namespace, ref.name) for one in observed.model_pools if one.value for ref in secrets_of(one.value)}


def secret_text(secret: Mapping[str, Any]) -> dict[str, str]:
    """Entries of a Secret; one that is no text counts as empty."""
    return {name: _text(value) for name, value in (secret.get("data") or {}).items()}


def _text(value: str) -> str:
    try:
        return base64.b64decode(value).decode()
    except ValueError:
        return ""
