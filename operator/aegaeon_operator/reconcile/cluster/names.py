"""Names, labels, ports and folders of a pool's objects: deterministic, so that the next decision finds them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from aegaeon_operator.reconcile.cluster.facts import Json, Key, Live
from aegaeon_operator.spec.resources import API_VERSION, GROUP
from aegaeon_proto.roles import Role

MANAGER = "aegaeon-operator"
INFERENCE = "inference.networking.k8s.io"
MANAGED = {"app.kubernetes.io/managed-by": MANAGER}
POOL_NAMESPACE = f"{GROUP}/pool-namespace"
CONFIG_HASH = f"{GROUP}/config"
APPLIED = f"{GROUP}/applied"
SCHEDULER_PORT, SCHEDULER_METRICS, SCHEDULER_ADMIN, SCHEDULER_STATUS = 7000, 7001, 7002, 7003
ENGINE_METRICS = 7101
GATEWAY_PORT, SINK_PORT, GATEWAY_METRICS = 8000, 7200, 9090
PICKER_PORT, PICKER_HEALTH, PICKER_METRICS = 9002, 9003, 9090
CONFIG, TLS, CREDENTIALS = "/etc/aegaeon/config", "/etc/aegaeon/tls", "/etc/aegaeon/credentials"
REDIS = "/etc/aegaeon/redis"
# The part of the pool (see `child`) that is a Secret, where gateways have it, and its entry.
PREFIX, PREFIX_FOLDER, PREFIX_ENTRY = "prefix", "/etc/aegaeon/prefix", "secret"
PROXY_USER, AUTHORITIES = "/etc/aegaeon/egress-proxy", "/etc/aegaeon/egress-ca"
BATCHES, BATCH_KEYS = "/var/lib/aegaeon/batches", "/etc/aegaeon/batches"
SEGMENTS = "/dev/shm/aegaeon"
CACHE = "/var/cache/aegaeon"
UID = 65532
# Labels of a GpuPool by which Kueue takes its engines into a queue, and the scheduling gate of a pod that it holds.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_LABELS = (KUEUE_QUEUE, "kueue.x-k8s.io/priority-class")
KUEUE_GATES = "kueue.x-k8s.io/"
# Component of the pods of each role.
COMPONENTS = {"unified": "engine", "prefill": "prefill", "decode": "decode"}
# Of which one leads. Each has its own Service: the address of one leads nowhere else. Engines and gateways know both,
# since a pool without a standby runs the second while the first is silent.
SCHEDULERS = ("scheduler", "standby")
# Whose certificates a component's pods have; the operator's are in no Secret, and a picker has none.
CERTIFICATES = {
    **dict.fromkeys(SCHEDULERS, Role.SCHEDULER),
    "gateway": Role.GATEWAY,
    **dict.fromkeys(COMPONENTS.values(), Role.ENGINE),
}


def configuration(component: str) -> str:
    """Whose configuration a component has: all schedulers have one, since a Secret would not hold large ones twice."""
    return SCHEDULERS[0] if component in SCHEDULERS else component


def child(key: Key, part: str) -> str:
    """Name of a child of the pool."""
    return f"{key.name}-{part}"


def selector(key: Key, component: str | None = None) -> dict[str, str]:
    """Labels by which pods of the pool are found."""
    found = {"app.kubernetes.io/name": "aegaeon", "app.kubernetes.io/instance": key.name}
    return found | ({"app.kubernetes.io/component": component} if component else {})


def labels(key: Key, component: str | None = None) -> dict[str, str]:
    """Of every object of the pool."""
    return {**selector(key, component), **MANAGED, POOL_NAMESPACE: key.namespace}


def scheduler_target(key: Key, component: str = "scheduler") -> str:
    """Where one of the pool's schedulers is reached by engines and gateways."""
    return f"{child(key, component)}.{key.namespace}.svc:{SCHEDULER_PORT}"


def admin_target(key: Key, component: str = "scheduler") -> str:
    """Where it is reached by the operator."""
    return f"{child(key, component)}.{key.namespace}.svc:{SCHEDULER_ADMIN}"


def admin_of(address: str) -> str:
    """The same of the pod at an address."""
    return f"[{address}]:{SCHEDULER_ADMIN}" if ":" in address else f"{address}:{SCHEDULER_ADMIN}"


def certificates(role: Role) -> str:
    """The part of the pool (see `child`) that is the Secret of a role's certificate."""
    return f"{role}-tls"


def manifest(
    api_version: str, kind: str, namespace: str, name: str, key: Key, owner: Live[Any], component: str | None = None
) -> Json:
    """The head of a child: owned by `owner`, in whose namespace it is."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels(key, component),
            "ownerReferences": [{**owned_by(owner), "controller": True, "blockOwnerDeletion": True}],
        },
    }


def owned_by(owner: Live[Any]) -> Json:
    """It goes when the owner goes."""
    return {"apiVersion": API_VERSION, "kind": owner.kind, "name": owner.name, "uid": owner.uid}


def fingerprint(value: object) -> str:
    """The same for the same content, whatever the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
