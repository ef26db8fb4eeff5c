"""Gathers the inputs of a reconcile from the objects of the API server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from aegaeon_operator.reconcile.cluster.facts import (
    ChildKey,
    Json,
    Key,
    Live,
    Observed,
    SecretName,
    Workload,
)
from aegaeon_operator.reconcile.cluster.ownership import owned
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.reconcile.cluster.resolve import secrets_of
from aegaeon_operator.spec.explain import explain
from aegaeon_operator.spec.resources import GpuPool, ModelPool

_KINDS: dict[str, type[GpuPool] | type[ModelPool]] = {"GpuPool": GpuPool, "ModelPool": ModelPool}
_WORKLOADS = ("Deployment", "StatefulSet")


def observe(key: Key, objects: Iterable[Json], now: datetime, platform: Platform) -> Observed:
    """Return the observed state from the pool's objects. Pools that are being deleted count as deleted.

    Only pods of the pool's namespace count: pods of other namespaces may have its labels.
    """
    known = list(objects)
    pools = [body for body in known if body["kind"] in _KINDS and "deletionTimestamp" not in body["metadata"]]
    rest = [body for body in known if body["kind"] not in _KINDS]
    return _observed(key, [live(body) for body in pools], rest, now, platform)


def _observed(
    key: Key, pools: Sequence[Live[Any]], rest: Iterable[Json], now: datetime, platform: Platform
) -> Observed:
    pool = next((pool for pool in pools if pool.kind == "GpuPool"), None)
    model_pools = tuple(sorted((pool for pool in pools if pool.kind == "ModelPool"), key=lambda pool: pool.age))
    objects = list(rest)
    children = [body for body in objects if body["kind"] != "Pod"]
    pods = tuple(body for body in objects if body["kind"] == "Pod" and body["metadata"]["namespace"] == key.namespace)
    return with_children(Observed(key, now, platform, pool, model_pools, pods=pods), children)


@dataclass(slots=True)
class ParsedPools:
    """The parsed GpuPool and ModelPools of one pool; a reconcile parses and validates only changed ones."""

    _known: dict[ChildKey, tuple[int, Live[Any] | None]] = field(default_factory=dict)

    def observe(
        self, key: Key, texts: Iterable[tuple[ChildKey, int, str]], now: datetime, platform: Platform
    ) -> Observed:
        """Return the same as `observe`, from objects with their versions."""
        before, self._known = self._known, {}
        children: list[Json] = []
        for child, version, text in texts:
            if child.kind not in _KINDS:
                children.append(json.loads(text))
                continue
            known = before.get(child)
            same = known is not None and known[0] == version
            self._known[child] = known if known and same else (version, _read(json.loads(text), known and known[1]))
        return _observed(key, [pool for _, pool in self._known.values() if pool], children, now, platform)


def _read(body: Json, before: Live[Any] | None) -> Live[Any] | None:
    """Parse a pool, without validating it again if only its status changed; None if it is being deleted."""
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
    """Return the observed state with the objects that the pool owns as its children."""
    pools: list[Live[Any]] = [*([observed.gpu_pool] if observed.gpu_pool else []), *observed.model_pools]
    children = {ChildKey.of(body): body for body in owned(pools, objects)}
    workloads = {key: Workload.of(body) for key, body in children.items() if key.kind in _WORKLOADS}
    return replace(observed, children=children, workloads=workloads)


def live(body: Json) -> Live[Any]:
    """Parse a GpuPool or ModelPool; objects of an older schema may be invalid, and get their problems in the status."""
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
        secrets=_secrets(metadata["namespace"], value),
    )


def _secrets(namespace: str, value: GpuPool | ModelPool | None) -> tuple[SecretName, ...]:
    if not isinstance(value, ModelPool):
        return ()
    return tuple(sorted({(namespace, ref.name) for ref in secrets_of(value)}))


def named_secrets(observed: Observed) -> set[tuple[str, str]]:
    """Return namespace and name of every Secret that the pool's ModelPools reference."""
    return {name for pool in observed.model_pools for name in pool.secrets}


def secret_text(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return the entries of a Secret; an entry that is no text counts as empty."""
    return {name: _text(value) for name, value in (secret.get("data") or {}).items()}


def _text(value: str) -> str:
    try:
        return base64.b64decode(value).decode()
    except ValueError:
        return ""
