"""Pod templates: the process of each component, confined as far as its devices and volumes allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aegaeon_operator.reconcile.cluster.facts import Json, Key, Platform
from aegaeon_operator.reconcile.cluster.names import (
    CACHE,
    COMPONENTS,
    CONFIG,
    CONFIG_HASH,
    CREDENTIALS,
    ENGINE_HTTP,
    GATEWAY_PORT,
    SCHEDULER_HTTP,
    SCHEDULER_PORT,
    SEGMENTS,
    SINK_PORT,
    TLS,
    UID,
    child,
    fingerprint,
    labels,
    selector,
)
from aegaeon_operator.spec.resources import GpuPoolSpec

# Streams get so long to end; then the pod goes, whatever happens.
GATEWAY_DRAIN_S, ENGINE_DRAIN_S = 60, 20
# Until a Service, or a gateway in front, sends nothing to a pod that is going.
_WITHDRAW_S = 5
# The scheduler stays while gateways and engines end what is open, when a whole pool goes.
_SCHEDULER_LINGER_S = 15
# hostPath folders belong to root at first: they are handed to the group of the pod. Root without capabilities may.
_HAND_OVER = "import os, sys\nfor path in sys.argv[1:]:\n    os.chown(path, -1, {uid})\n    os.chmod(path, 0o2770)\n"
_CONFINED: Json = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
_HANGS_S = 60


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume and where it is mounted."""

    name: str
    path: str
    source: Json
    read_only: bool = False


def scheduler_pod(key: Key, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """One brain. `config` is what a change of must start it anew."""
    container = _container(key, "scheduler", platform.control_image, platform, SCHEDULER_HTTP, "/readyz", "/healthz")
    container["ports"] = _ports(grpc=SCHEDULER_PORT, http=SCHEDULER_HTTP)
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": _SCHEDULER_LINGER_S}}}
    container["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    volumes = [*_everybody(key, "scheduler"), Volume("tmp", "/tmp", {"emptyDir": {}})]
    return _template(key, "scheduler", spec, container, volumes, config, _SCHEDULER_LINGER_S + 10)


def gateway_pod(key: Key, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """The OpenAI API."""
    container = _container(key, "gateway", platform.control_image, platform, GATEWAY_PORT, "/health", "/health")
    container["command"] += ["--name", "$(POD_NAME)", "--sink", f"$(POD_IP):{SINK_PORT}"]
    container["env"] = [_field("POD_NAME", "metadata.name"), _field("POD_IP", "status.podIP")]
    container["ports"] = _ports(http=GATEWAY_PORT, sink=SINK_PORT)
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": _WITHDRAW_S}}}
    container["resources"] = {"requests": {"cpu": "100m", "memory": "256Mi"}}
    volumes = [
        *_everybody(key, "gateway"),
        _credentials(key),
        *_models(spec),
        Volume("tmp", "/tmp", {"emptyDir": {}}),
        Volume("cache", CACHE, {"emptyDir": {}}),
    ]
    template = _template(key, "gateway", spec, container, volumes, config, GATEWAY_DRAIN_S + _WITHDRAW_S + 10)
    template["spec"]["topologySpreadConstraints"] = [_spread(key, "gateway")]
    return template


def engine_pod(key: Key, role: str, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """One engine: the accelerator, the node's shared memory, and what the platform team laid over it."""
    component = COMPONENTS[role]
    overlay = spec.pod_template
    container = _container(key, component, platform.engine_image, platform, ENGINE_HTTP, "/readyz", "/healthz")
    container["command"][2] = "aegaeon_sidecar"
    container["command"] += ["--instance", "$(POD_NAME)", "--node", "$(NODE_NAME)"]
    container["env"] = [
        _field("POD_NAME", "metadata.name"),
        _field("NODE_NAME", "spec.nodeName"),
        {"name": "OMP_NUM_THREADS", "value": str(spec.tuning.threads)},
    ]
    container["ports"] = _ports(http=ENGINE_HTTP)
    container["resources"] = _resources(spec)
    shared = [_segments(key, spec), *_disk(spec)]
    volumes = [
        *_everybody(key, component),
        _credentials(key),
        *_models(spec),
        *shared,
        Volume("tmp", "/tmp", {"emptyDir": {}}),
        Volume("cache", CACHE, {"emptyDir": {}}),
    ]
    template = _template(key, component, spec, container, volumes, config, ENGINE_DRAIN_S + 20)
    pod: Json = template["spec"]
    pod["topologySpreadConstraints"] = [_spread(key, component)]
    if owned := [volume for volume in shared if "hostPath" in volume.source]:
        pod["initContainers"] = [_hand_over(platform, owned)]
    if role == "decode":
        pod["affinity"] = {"podAffinity": {_REQUIRED: [_beside(key, "prefill")]}}
    template["metadata"]["labels"] = {**overlay.labels, **template["metadata"]["labels"]}
    template["metadata"]["annotations"] = {**overlay.annotations, **template["metadata"]["annotations"]}
    optional: dict[str, Any] = {
        "nodeSelector": dict(overlay.node_selector),
        "tolerations": [one.model_dump(by_alias=True, exclude_none=True) for one in overlay.tolerations],
        "priorityClassName": overlay.priority_class_name,
        "runtimeClassName": overlay.runtime_class_name,
    }
    pod |= {name: value for name, value in optional.items() if value}
    return template


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _container(key: Key, component: str, image: str, platform: Platform, port: int, ready: str, alive: str) -> Json:
    return {
        "name": component,
        "image": image,
        "imagePullPolicy": platform.pull_policy,
        "command": ["python3", "-m", f"aegaeon_{component}", "--config", f"{CONFIG}/{component}.json"],
        "startupProbe": _probe(alive, port, 2, 150),  # an engine reads its models' files first
        "readinessProbe": _probe(ready, port, 1, 2),
        "livenessProbe": _probe(alive, port, 10, _HANGS_S // 10),
        "securityContext": _CONFINED,
    }


def _template(
    key: Key, component: str, spec: GpuPoolSpec, container: Json, volumes: list[Volume], config: Json, grace_s: int
) -> Json:
    container["volumeMounts"] = [
        {"name": one.name, "mountPath": one.path} | ({"readOnly": True} if one.read_only else {}) for one in volumes
    ]
    pod: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": UID,
            "runAsGroup": UID,
            "fsGroup": UID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": grace_s,
        "containers": [container],
        "volumes": [{"name": one.name, **one.source} for one in volumes],
    }
    if spec.pod_template.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.pod_template.image_pull_secrets]
    metadata = {"labels": labels(key, component), "annotations": {CONFIG_HASH: fingerprint(config)}}
    return {"metadata": metadata, "spec": pod}


def _everybody(key: Key, component: str) -> list[Volume]:
    """Its own configuration, nobody else's, and the pool's certificates."""
    items = [{"key": f"{component}.json", "path": f"{component}.json"}]
    config = {"secret": {"secretName": child(key, "config"), "items": items, "defaultMode": 0o440}}
    certificates = {"secret": {"secretName": child(key, "tls"), "defaultMode": 0o440}}
    return [Volume("config", CONFIG, config, read_only=True), Volume("tls", TLS, certificates, read_only=True)]


def _credentials(key: Key) -> Volume:
    source = {"secret": {"secretName": child(key, "credentials"), "defaultMode": 0o440}}
    return Volume("credentials", CREDENTIALS, source, read_only=True)


def _models(spec: GpuPoolSpec) -> list[Volume]:
    models = spec.volumes.models
    if models is None:
        return []
    source: Json = (
        {"persistentVolumeClaim": {"claimName": models.claim, "readOnly": True}}
        if models.claim
        else {"hostPath": {"path": models.path, "type": "Directory"}}
    )
    return [Volume("models", models.path, source, read_only=True)]


def _segments(key: Key, spec: GpuPoolSpec) -> Volume:
    """What the engines of a node share, on a tmpfs."""
    claim = spec.volumes.shared_claim
    if claim:
        return Volume("segments", SEGMENTS, {"persistentVolumeClaim": {"claimName": claim}})
    path = f"{SEGMENTS}/{key.namespace}.{key.name}"
    return Volume("segments", SEGMENTS, {"hostPath": {"path": path, "type": "DirectoryOrCreate"}})


def _disk(spec: GpuPoolSpec) -> list[Volume]:
    disk = spec.memory.disk
    return [Volume("disk", disk.path, {"hostPath": {"path": disk.path, "type": "DirectoryOrCreate"}})] if disk else []


def _hand_over(platform: Platform, volumes: list[Volume]) -> Json:
    return {
        "name": "hand-over",
        "image": platform.engine_image,
        "imagePullPolicy": platform.pull_policy,
        "command": ["python3", "-c", _HAND_OVER.format(uid=UID), *(one.path for one in volumes)],
        "securityContext": {**_CONFINED, "runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": one.name, "mountPath": one.path} for one in volumes],
    }


def _resources(spec: GpuPoolSpec) -> Json:
    given = spec.pod_template.resources
    accelerator = {spec.accelerator.resource_name: "1"} if spec.accelerator.resource_name else {}
    found = {"requests": {**given.requests, **accelerator}, "limits": {**given.limits, **accelerator}}
    return {name: amounts for name, amounts in found.items() if amounts}


def _spread(key: Key, component: str) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(key, component)},
    }


def _beside(key: Key, component: str) -> Json:
    """KV cache is handed off within a node."""
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector(key, component)}}


def _probe(path: str, port: int, period_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def _ports(**ports: int) -> list[Json]:
    return [{"name": name, "containerPort": port} for name, port in ports.items()]


def _field(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
