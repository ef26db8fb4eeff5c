"""Common parts of a pool's pods: security contexts, probes, certificates, volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aegaeon_operator.reconcile.cluster.facts import Json, Key
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
from aegaeon_operator.reconcile.cluster.platform import Platform
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
# Taints of a lost node, after 50 s by default; by default pods tolerate them for another 5 min.
# Control pods are cheap to run twice. An engine whose node returns within a minute still has its weights.
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LOST_CONTROL_S, _LOST_ENGINE_S = 2, 60


@dataclass(frozen=True, slots=True)
class Image:
    """Image of a container."""

    name: str
    pull_policy: str


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume and its mount."""

    name: str
    path: str
    source: Json
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Probes:
    """Readiness and liveness probes of a container."""

    ready: Json
    alive: Json


def http_probes(ready: str, alive: str, port: int) -> Probes:
    """Return HTTP probes of two paths."""
    return Probes(*({"httpGet": {"path": path, "port": port}} for path in (ready, alive)))


def grpc_probes(ready: str, alive: str, port: int) -> Probes:
    """Return gRPC health probes of two services."""
    return Probes(*({"grpc": {"service": name, "port": port}} for name in (ready, alive)))


def container(name: str, image: Image, command: list[str], probes: Probes) -> Json:
    """Return a container with the least privileges."""
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
    """Return the container of a process that reads a configuration file."""
    command = ["python3", "-m", module or f"aegaeon_{component}", "--config", f"{CONFIG}/{component}.json"]
    return container(component, image, command, probes)


def user(platform: Platform) -> Json:
    """Return user and group of the processes and volumes, for the pod's securityContext."""
    return {"runAsUser": UID, "runAsGroup": UID, "fsGroup": UID} if platform.fixed_user else {}


def template(
    key: Key, component: str, spec: GpuPoolSpec, process: Json, volumes: list[Volume], config: Json, grace_s: int
) -> Json:
    """Return the pod template for a container. A change of `config` replaces the pods."""
    overlay = spec.pod_template if component in COMPONENTS.values() else spec.control_pod_template
    process["volumeMounts"] = [
        {"name": volume.name, "mountPath": volume.path} | ({"readOnly": True} if volume.read_only else {})
        for volume in volumes
    ]
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": grace_s,
        "containers": [process],
        "volumes": [{"name": volume.name, **volume.source} for volume in volumes],
    }
    body = {
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
    return body


def tolerations(overlay: PodTemplate, component: str) -> list[Json]:
    """Return the template's tolerations, and those for lost nodes that the template does not set."""
    own = [toleration.model_dump(by_alias=True, exclude_none=True) for toleration in overlay.tolerations]
    seconds = _LOST_ENGINE_S if component in COMPONENTS.values() else _LOST_CONTROL_S
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    keys = [key for key in _LOST if not any(_covers(toleration, key) for toleration in own)]
    return [*own, *({"key": key, **lost} for key in keys)]


def _covers(toleration: Json, key: str) -> bool:
    return bool(toleration.get("key", key) == key and toleration.get("effect", "NoExecute") == "NoExecute")


def own_volumes(key: Key, component: str) -> list[Volume]:
    """Return the volumes of a component's configuration and of its role's certificate."""
    items = [{"key": f"{configuration(component)}.json", "path": f"{component}.json"}]
    config: Json = {"secret": {"secretName": child(key, "config"), "items": items, "defaultMode": 0o440}}
    if component in SCHEDULERS:
        config = _with_models(key, component, items)
    tls = secret_volume(key, certificates(CERTIFICATES[component]), TLS, "tls")
    return [Volume("config", CONFIG, config, read_only=True), tls]


def _with_models(key: Key, component: str, items: list[Json]) -> Json:
    """Return the volume of a scheduler's configuration with models and tenants. It has all shards from the start, so
    that a new shard does not restart the pod."""
    own: Json = {"name": child(key, "config"), "items": items}
    shards = [
        {"name": name, "optional": True, "items": [{"key": MODELS_ENTRY, "path": f"{component}.d/{number}.json"}]}
        for number, name in enumerate(shard_names(key, MODELS))
    ]
    return _projected([own, *shards])


def credentials_volume(key: Key) -> Volume:
    """Return the volume of the credentials for models' sources, all shards in one folder."""
    shards: list[Json] = [{"name": name, "optional": True} for name in shard_names(key, "credentials")]
    return Volume("credentials", CREDENTIALS, _projected(shards), read_only=True)


def _projected(secrets: list[Json]) -> Json:
    return {"projected": {"sources": [{"secret": secret} for secret in secrets], "defaultMode": 0o440}}


def secret_volume(key: Key, part: str, path: str, name: str = "") -> Volume:
    """Return the volume of a Secret of the pool."""
    source = {"secret": {"secretName": child(key, part), "defaultMode": 0o440}}
    return Volume(name or part, path, source, read_only=True)


def scratch(**paths: str) -> list[Volume]:
    """Return emptyDir volumes by name."""
    return [Volume(name, path, {"emptyDir": {}}) for name, path in paths.items()]


def amounts(overlay: PodTemplate, requests: Json, accelerator: Json) -> Json:
    """Return a container's resources: the template's, with default `requests` and the accelerator added."""
    own = overlay.resources
    defaults = {name: amount for name, amount in requests.items() if name not in own.limits}  # a limit is the request
    resources = {
        "requests": {**defaults, **own.requests, **accelerator},
        "limits": {**own.limits, **accelerator},
        "claims": [claim.model_dump(by_alias=True) for claim in own.claims],
    }
    return {name: values for name, values in resources.items() if values}


def spread(key: Key, component: str) -> Json:
    """Return the constraint that spreads a component's pods over nodes, if possible.

    A Deployment's pods count only pods of their own revision: with the old ones counted, which are deleted later, an
    upgrade would leave two new pods on one node. Engines are replaced in place and stay with their node's cache.
    """
    constraint: Json = {
        "maxSkew": 1,
        "topologyKey": HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(key, component)},
    }
    if component not in COMPONENTS.values():
        constraint["matchLabelKeys"] = ["pod-template-hash"]
    return constraint


def ports(**numbers: int) -> list[Json]:
    """Return named ports of a container."""
    return [{"name": name, "containerPort": port} for name, port in numbers.items()]


def from_field(name: str, path: str) -> Json:
    """Return an environment variable with the value of a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _paced(probe: Json, period_s: int, failures: int) -> Json:
    return {**probe, "periodSeconds": period_s, "failureThreshold": failures, "timeoutSeconds": 5}
