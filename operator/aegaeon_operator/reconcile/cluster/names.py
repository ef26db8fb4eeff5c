"""Names, labels, ports and folders of a pool's objects; they are deterministic, so that each reconcile finds them."""

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
# The pool's Secret (see `child`), its folder in gateways, and its entry.
PREFIX, PREFIX_FOLDER, PREFIX_ENTRY = "prefix", "/etc/aegaeon/prefix", "secret"
PROXY_USER, AUTHORITIES = "/etc/aegaeon/egress-proxy", "/etc/aegaeon/egress-ca"
BATCHES, BATCH_KEYS = "/var/lib/aegaeon/batches", "/etc/aegaeon/batches"
SEGMENTS = "/dev/shm/aegaeon"
CACHE = "/var/cache/aegaeon"
UID = 65532
# Labels of a GpuPool that put its engines into a queue of Kueue, and the scheduling gate of a queued pod.
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
KUEUE_LABELS = (KUEUE_QUEUE, "kueue.x-k8s.io/priority-class")
KUEUE_GATES = "kueue.x-k8s.io/"
# Component of the pods of each role.
COMPONENTS = {"unified": "engine", "prefill": "prefill", "decode": "decode"}
# One of them leads. Each has a Service of its own. Engines and gateways know both addresses, since a pool without a
# standby runs the second while the first does not answer.
SCHEDULERS = ("scheduler", "standby")
# The role of each component's certificate; the operator's is in no Secret, and a picker has none.
CERTIFICATES = {
    **dict.fromkeys(SCHEDULERS, Role.SCHEDULER),
    "gateway": Role.GATEWAY,
    **dict.fromkeys(COMPONENTS.values(), Role.ENGINE),
}


def configuration(component: str) -> str:
    """Return the component whose configuration this one uses: schedulers share one, to keep the Secret small."""
    return SCHEDULERS[0] if component in SCHEDULERS else component


def child(key: Key, part: str) -> str:
    """Return the name of a child of the pool."""
    return f"{key.name}-{part}"


def selector(key: Key, component: str | None = None) -> dict[str, str]:
    """Return the labels that select the pool's pods."""
    labels = {"app.kubernetes.io/name": "aegaeon", "app.kubernetes.io/instance": key.name}
    return labels | ({"app.kubernetes.io/component": component} if component else {})


def labels(key: Key, component: str | None = None) -> dict[str, str]:
    """Return the labels of every object of the pool."""
    return {**selector(key, component), **MANAGED, POOL_NAMESPACE: key.namespace}


def scheduler_target(key: Key, component: str = "scheduler") -> str:
    """Return the address of one of the pool's schedulers for engines and gateways."""
    return f"{child(key, component)}.{key.namespace}.svc:{SCHEDULER_PORT}"


def admin_target(key: Key, component: str = "scheduler") -> str:
    """Return the address of one of the pool's schedulers for the operator."""
    return f"{child(key, component)}.{key.namespace}.svc:{SCHEDULER_ADMIN}"


def admin_of(address: str) -> str:
    """Return the operator's address of the scheduler pod at an address."""
    return f"[{address}]:{SCHEDULER_ADMIN}" if ":" in address else f"{address}:{SCHEDULER_ADMIN}"


def certificates(role: Role) -> str:
    """Return the Secret (see `child`) of a role's certificate."""
    return f"{role}-tls"


def manifest(
    api_version: str, kind: str, namespace: str, name: str, key: Key, owner: Live[Any], component: str | None = None
) -> Json:
    """Return the head of a child's manifest, owned by `owner`."""
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
    """Return the reference to an owner; garbage collection deletes its dependents."""
    return {"apiVersion": API_VERSION, "kind": owner.kind, "name": owner.name, "uid": owner.uid}


def fingerprint(value: object) -> str:
    """Return a hash of a value that does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
