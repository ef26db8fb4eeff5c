"""Objects as an API server would hand them out, for tests of what is decided from them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from aegaeon_operator.kube.gather import observe
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key, Observed
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.spec.resources import API_VERSION

Json = dict[str, Any]
NOW = datetime(2026, 11, 22, tzinfo=UTC)
KEY = Key("infra", "pool")
PLATFORM = Platform("localhost/control:1", "localhost/engine:1", "localhost/engine-vllm:1", namespace="system")
MEMORY = {"deviceBytes": "13Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"}


def an_object(kind: str, namespace: str, name: str, spec: Json, created: int = 0) -> Json:
    metadata = {
        "namespace": namespace,
        "name": name,
        "uid": f"{kind}-{namespace}-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": f"2026-01-01T00:00:{created:02d}Z",
    }
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def gpu_pool(**spec: Any) -> Json:
    given = {"engines": {"replicas": 2}, "memory": MEMORY, "volumes": {"models": {"path": "/srv/models"}}}
    return an_object("GpuPool", *KEY, {**given, **spec})


def model_pool(name: str, *models: str, namespace: str = "infra", created: int = 0, **spec: Any) -> Json:
    given = {
        "gpuPoolRef": {"name": KEY.name, "namespace": KEY.namespace},
        "models": [{"name": model, "source": {"hostPath": model}} for model in models],
    }
    return an_object("ModelPool", namespace, name, {**given, **spec}, created)


def condition(body: Json, kind: str) -> Json:
    """Of an object's status; empty where it has none of this type."""
    conditions = body.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})


def a_child(kind: str, name: str, owner: str = "GpuPool-infra-pool") -> Json:
    """What the operator has made for the pool, or for the ModelPool with that uid."""
    owners = [{"kind": owner.partition("-")[0], "name": owner.rpartition("-")[2], "uid": owner, "controller": True}]
    metadata = {"namespace": KEY.namespace, "name": name, "uid": f"uid-of-{name}", "ownerReferences": owners}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def observed(
    *objects: Json, secrets: Mapping[tuple[str, str], Mapping[str, str]] | None = None, **changes: Any
) -> Observed:
    return replace(observe(KEY, objects, NOW, PLATFORM), secrets=secrets or {}, **changes)


def by_key(manifests: tuple[Json, ...]) -> dict[ChildKey, Json]:
    return {ChildKey.of(one): one for one in manifests}


def entry(secret: Json, name: str) -> str:
    return base64.b64decode(secret["data"][name]).decode()
