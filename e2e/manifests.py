"""The pools of the tests, as a platform team and tenants would write them; the namespace is that of the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e2e.cluster.product import MODELS

POOL = "demo"
# One API key a tenant, and the model by which each reaches the pool.
RED, BLUE, GREEN = "red-key-0123456789", "blue-key-0123456789", "green-key-0123456789"
QUOTA = 5  # requests a minute of tenant green
PLENTY = 100_000  # and of the others: it is counted, but it never ends
KEYS = {"llama": RED, "qwen2": RED, "mistral": BLUE}
_API = "serving.aegaeon.io/v1alpha1"


def gpu_pool(**more: Any) -> dict[str, Any]:
    """Engines that hold one or two of the tiny models each, and two gateways; `more` fields of the spec."""
    return {
        "apiVersion": _API,
        "kind": "GpuPool",
        "metadata": {"name": POOL},
        "spec": {
            "memory": {"deviceBytes": "13Mi", "slabSize": "256Ki", "hostModelCache": "32Mi", "hostKv": "12Mi"},
            "gateway": {"replicas": 2},
            "volumes": {"models": {"path": MODELS}},
            "podTemplate": engine_pods("torch"),
            **more,
        },
    }


def engine_pods(backend: str) -> dict[str, Any]:
    """Nodes of the tests bring each backend as a runtime class (e2e/cluster/node.py)."""
    return {"runtimeClassName": backend, "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}}}


def model_pool(tenant: str, names: Sequence[str], guest: str = "") -> dict[str, Any]:
    """A tenant's models, for itself and, within QUOTA, for a guest."""
    tenants = [_tenant(tenant, PLENTY)]
    if guest:
        tenants.append(_tenant(guest, QUOTA))
    return {
        "apiVersion": _API,
        "kind": "ModelPool",
        "metadata": {"name": tenant},
        "spec": {
            "gpuPoolRef": {"name": POOL},
            "models": [{"name": name, "source": {"hostPath": name}} for name in names],
            "tenants": tenants,
        },
    }


def _tenant(name: str, quota: int) -> dict[str, Any]:
    secret = {"name": f"{name}-keys", "key": "keys"}
    return {"name": name, "keySecretRef": secret, "quota": {"requestsPerMinute": quota}}


def keys(tenant: str, *known: str) -> dict[str, Any]:
    """The Secret of a tenant's API keys."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{tenant}-keys"},
        "stringData": {"keys": "\n".join(known)},
    }
