"""What all pods of a pool have in common: confinement, probes, certificates, what is laid over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aegaeon_operator.reconcile.cluster.facts import Json, Key, Platform
from aegaeon_operator.reconcile.cluster.names import (
    CERTIFICATES,
    COMPONENTS,
    CONFIG,
    CONFIG_HASH,
    CREDENTIALS,
    SCHEDULERS,
    TLS,
    UID,
    certificates,
    child,
    configuration,
    fingerprint,
    labels,
    selector,
)
from aegaeon_operator.reconcile.cluster.shards import MODELS, MODELS_ENTRY, shard_names
from aegaeon_operator.spec.pods import PodTemplate
from aegaeon_operator.spec.resources import GpuPoolSpec

CONFINED: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
HOST = "kubernetes.io/hostname"
_HANGS_S = 60
# Taints of a node that Kubernetes has given up, after 50 s by default; pods without tolerations stay for 5 min more.
# Control pods are cheap to have twice. An engine that is back with its node within a minute goes on with its weights.
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LOST_CONTROL_S, _LOST_ENGINE_S = 2, 60


@dataclass(frozen=True, slots=True)
class Image:
    """Of a container."""

    name: str
    pull_policy: str


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume and where it is mounted."""

    name: str
    path: str
    source: Json
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Probes:
    """What kubelet asks: may it be sent work, and does it live."""

    ready: Json
    alive: Json


def http_probes(ready: str, alive: str, port: int) -> Probes:
    """GET of two paths."""
    return Probes(*({"httpGet": {"path": path, "port": port}} for path in (ready, alive)))


def grpc_probes(ready: str, alive: str, port: int) -> Probes:
    """gRPC health of two services."""
    return Probes(*({"grpc": {"service": name, "port": port}} for name in (ready, alive)))


def container(name: str, image: Image, command: list[str], probes: Probes) -> Json:
    """A container that may do nothing but compute."""
    return {
        "name": name,
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": command,
        "startupProbe": _paced(probes.alive, 1, 300),  # an engine reads its models' files first
        "readinessProbe": _paced(probes.ready, 1, 2),
        "livenessProbe": _paced(probes.alive, 10, _HANGS_S // 10),
        "securityContext": CONFINED,
    }


def configured(component: str, image: Image, probes: Probes, module: str = "") -> Json:
    """The container of a process that reads a config file."""
    command = ["python3", "-m", module or f"aegaeon_{component}", "--config", f"{CONFIG}/{component}.json"]
    return container(component, image, command, probes)


def user(platform: Platform) -> Json:
    """Who processes are and whose the pod's volumes are, for the pod's securityContext."""
    return {"runAsUser": UID, "runAsGroup": UID, "fsGroup": UID} if platform.fixed_user else {}


def template(
    key: Key, component: str, spec: GpuPoolSpec, made: Json, volumes: list[Volume], config: Json, grace_s: int
) -> Json:
    """The pod around a container. A change of `config` replaces the pods."""
    overlay = spec.pod_template if component in COMPONENTS.values() else spec.control_pod_template
    made["volumeMounts"] = [
        {"name": one.name, "mountPath": one.path} | ({"readOnly": True} if one.read_only else {}) for one in volumes
    ]
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": grace_s,
        "containers": [made],
        "volumes": [{"name": one.name, **one.source} for one in volumes],
    }
    found = {
        "metadata": {
            "labels": {**overlay.labels, **labels(key, component)},
            "annotations": {**overlay.annotations, CONFIG_HASH: fingerprint(config)},
        },
        "spec": pod,
    }
    optional: dict[str, Any] = {
        "nodeSelector": dict(overlay.node_selector),
        "tolerations": tolerations(overlay, component),
        "priorityClassName": overlay.priority_class_name,
        "runtimeClassName": overlay.runtime_class_name,
        "imagePullSecrets": [{"name": name} for name in spec.images.pull_secrets],
    }
    pod |= {name: value for name, value in optional.items() if value}
    return found


def tolerations(overlay: PodTemplate, component: str) -> list[Json]:
    """Those of the overlay, and how long a pod stays on a node that is lost, unless the overlay says."""
    given = [one.model_dump(by_alias=True, exclude_none=True) for one in overlay.tolerations]
    seconds = _LOST_ENGINE_S if component in COMPONENTS.values() else _LOST_CONTROL_S
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    keys = [key for key in _LOST if not any(_covers(one, key) for one in given)]
    return [*given, *({"key": key, **lost} for key in keys)]


def _covers(toleration: Json, key: str) -> bool:
    return bool(toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute")


def own_volumes(key: Key, component: str) -> list[Volume]:
    """Its own configuration and the certificate of its own role, no other."""
    items = [{"key": f"{configuration(component)}.json", "path": f"{component}.json"}]
    config: Json = {"secret": {"secretName": child(key, "config"), "items": items, "defaultMode": 0o440}}
    if component in SCHEDULERS:
        config = _with_models(key, component, items)
    tls = secret_volume(key, certificates(CERTIFICATES[component]), TLS, "tls")
    return [Volume("config", CONFIG, config, read_only=True), tls]


def _with_models(key: Key, component: str, items: list[Json]) -> Json:
    """Beside its configuration the folder of models and tenants. All shards from the start: what comes later restarts
    nothing."""
    own: Json = {"name": child(key, "config"), "items": items}
    shards = [
        {"name": name, "optional": True, "items": [{"key": MODELS_ENTRY, "path": f"{component}.d/{number}.json"}]}
        for number, name in enumerate(shard_names(key, MODELS))
    ]
    return _projected([own, *shards])


def credentials_volume(key: Key) -> Volume:
    """Those of the models' sources, all shards in one folder."""
    shards: list[Json] = [{"name": name, "optional": True} for name in shard_names(key, "credentials")]
    return Volume("credentials", CREDENTIALS, _projected(shards), read_only=True)


def _projected(secrets: list[Json]) -> Json:
    return {"projected": {"sources": [{"secret": secret} for secret in secrets], "defaultMode": 0o440}}


def secret_volume(key: Key, part: str, path: str, name: str = "") -> Volume:
    """All of a Secret of the pool."""
    source = {"secret": {"secretName": child(key, part), "defaultMode": 0o440}}
    return Volume(name or part, path, source, read_only=True)


def scratch(**paths: str) -> list[Volume]:
    """Folders, by name, that a pod may write to and that go with it."""
    return [Volume(name, path, {"emptyDir": {}}) for name, path in paths.items()]


def amounts(overlay: PodTemplate, requests: Json, accelerator: Json) -> Json:
    """Resources of a container: `requests` where the overlay says nothing; the accelerator as it is."""
    given = overlay.resources
    silent = {name: amount for name, amount in requests.items() if name not in given.limits}  # a limit alone is both
    found = {
        "requests": {**silent, **given.requests, **accelerator},
        "limits": {**given.limits, **accelerator},
        "claims": [one.model_dump(by_alias=True) for one in given.claims],
    }
    return {name: values for name, values in found.items() if values}


def spread(key: Key, component: str) -> Json:
    """Over the nodes, as far as there is room.

    Pods of a Deployment count those of their own version alone: counting the old ones, which go later, an upgrade would
    leave two new pods on one node. Engines are replaced in place, and stay with their node's cache.
    """
    found: Json = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(key, component)},
    }
    if component not in COMPONENTS.values():
        found["matchLabelKeys"] = ["pod-template-hash"]
    return found


def ports(**numbers: int) -> list[Json]:
    """Named ports of a container."""
    return [{"name": name, "containerPort": port} for name, port in numbers.items()]


def from_field(name: str, path: str) -> Json:
    """An environment variable from the pod's own fields."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _paced(probe: Json, period_s: int, failures: int) -> Json:
    return {**probe, "periodSeconds": period_s, "failureThreshold": failures, "timeoutSeconds": 5}
