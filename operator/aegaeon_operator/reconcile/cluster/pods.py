"""Pod templates of the components, with the least privileges that their devices and volumes allow."""

from __future__ import annotations

from typing import Literal

from aegaeon_operator.reconcile.cluster.egress import egress_volumes
from aegaeon_operator.reconcile.cluster.facts import Json, Key
from aegaeon_operator.reconcile.cluster.names import (
    BATCH_KEYS,
    BATCHES,
    CACHE,
    COMPONENTS,
    ENGINE_METRICS,
    GATEWAY_METRICS,
    GATEWAY_PORT,
    PICKER_HEALTH,
    PICKER_METRICS,
    PICKER_PORT,
    PREFIX,
    PREFIX_FOLDER,
    REDIS,
    SCHEDULER_ADMIN,
    SCHEDULER_METRICS,
    SCHEDULER_PORT,
    SEGMENTS,
    SINK_PORT,
    UID,
    child,
    selector,
)
from aegaeon_operator.reconcile.cluster.overlay import apply_template
from aegaeon_operator.reconcile.cluster.platform import Platform
from aegaeon_operator.reconcile.cluster.template import (
    CONFINED,
    HOST,
    Image,
    Volume,
    amounts,
    configured,
    container,
    credentials_volume,
    from_field,
    grpc_probes,
    http_probes,
    own_volumes,
    ports,
    scratch,
    secret_volume,
    spread,
    template,
    user,
)
from aegaeon_operator.spec.kubernetes import PickerLimits
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.backends import BACKENDS

# Time for streams to end before the pod is terminated.
GATEWAY_DRAIN_S, ENGINE_DRAIN_S = 60, 20
_PICKER_DRAIN_S = 130  # a picker's stream lasts as long as its request
# Time until Services and gateways in front stop sending requests to a terminating pod.
WITHDRAW_S = 8
# When a pool is deleted, the scheduler runs until gateways and engines have ended their requests.
_SCHEDULER_LINGER_S = 15
_SMALL: Json = {"cpu": "100m", "memory": "256Mi"}
_GATEWAY: Json = {"cpu": "100m", "memory": "512Mi"}  # with its workers and the tokenizers of two or three models
_PLAIN = ("cpu", "memory", "ephemeral-storage")
# New hostPath folders belong to root: an init container, root without capabilities, gives them to the pod's group.
_HAND_OVER = "import os, sys\nfor path in sys.argv[1:]:\n    os.chown(path, -1, {uid})\n    os.chmod(path, 0o2770)\n"


def scheduler_pod(key: Key, component: str, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """Return the pod of a scheduler or its standby. A change of `config` replaces the pod."""
    probes = http_probes("/readyz", "/healthz", SCHEDULER_METRICS)
    process = configured(component, _image(spec, platform, "control"), probes, "aegaeon_scheduler")
    process["command"] += ["--holder", "$(POD_NAME)"]
    process["env"] = [from_field("POD_NAME", "metadata.name")]
    process["ports"] = ports(grpc=SCHEDULER_PORT, admin=SCHEDULER_ADMIN, metrics=SCHEDULER_METRICS)
    process["lifecycle"] = _sleep(_SCHEDULER_LINGER_S)
    process["resources"] = amounts(spec.control_pod_template, _SMALL, {})
    volumes = [*own_volumes(key, component), *egress_volumes(spec), *scratch(tmp="/tmp")]
    pod = template(key, component, spec, process, volumes, config, _SCHEDULER_LINGER_S + 10)
    # The leader is in a Lease, so the scheduler has API access; of the other processes only the picker has.
    pod["spec"] |= {"serviceAccountName": child(key, "scheduler"), "automountServiceAccountToken": True}
    other = {"scheduler": "standby", "standby": "scheduler"}[component]
    apart = {"weight": 100, "podAffinityTerm": _beside(key, other)}
    pod["spec"]["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}}
    pod["spec"]["securityContext"] |= user(platform)
    return apply_template(pod, spec.control_pod_template, selector(key, component))


def gateway_pod(key: Key, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """Return the pod of a gateway."""
    process = configured(
        "gateway", _image(spec, platform, "control"), http_probes("/readyz", "/healthz", GATEWAY_METRICS)
    )
    address = "[$(POD_IP)]" if platform.ipv6 else "$(POD_IP)"
    process["command"] += ["--name", "$(POD_NAME)", "--sink", f"{address}:{SINK_PORT}"]
    process["env"] = [from_field("POD_NAME", "metadata.name"), from_field("POD_IP", "status.podIP")]
    process["ports"] = ports(http=GATEWAY_PORT, sink=SINK_PORT, metrics=GATEWAY_METRICS)
    process["resources"] = amounts(spec.control_pod_template, _GATEWAY, {})
    volumes = [
        *own_volumes(key, "gateway"),
        credentials_volume(key),
        secret_volume(key, PREFIX, PREFIX_FOLDER),
        *([secret_volume(key, "redis", REDIS)] if platform.redis and platform.redis.files else []),
        *egress_volumes(spec),
        *_models(spec),
        *_batches(spec),
        *scratch(tmp="/tmp", cache=CACHE),
    ]
    pod = template(key, "gateway", spec, process, volumes, config, GATEWAY_DRAIN_S + WITHDRAW_S + 10)
    pod["spec"]["topologySpreadConstraints"] = [spread(key, "gateway")]
    pod["spec"] |= _account(spec.service_accounts.gateway)
    pod["spec"]["securityContext"] |= user(platform)
    return apply_template(pod, spec.control_pod_template, selector(key, "gateway"))


def picker_pod(key: Key, spec: GpuPoolSpec, limits: PickerLimits, platform: Platform) -> Json:
    """Return the pod of the endpoint picker, which watches the pool's gateway pods through the API server."""
    command = ["python3", "-m", "aegaeon_picker", "--pool", key.name, "--namespace", key.namespace]
    command += ["--grace", str(_PICKER_DRAIN_S)]
    if platform.ipv6:  # the defaults are IPv4 addresses
        command += ["--listen", f"{platform.anywhere}:{PICKER_PORT}"]
        command += ["--health-listen", f"{platform.anywhere}:{PICKER_HEALTH}"]
    for name, value in limits.model_dump(exclude_defaults=True).items():
        command += [f"--max-{name.replace('_', '-')}", str(value)]
    probes = grpc_probes("readiness", "liveness", PICKER_HEALTH)
    process = container("picker", _image(spec, platform, "control"), command, probes)
    process["ports"] = ports(grpc=PICKER_PORT, health=PICKER_HEALTH, metrics=PICKER_METRICS)
    process["lifecycle"] = _sleep(WITHDRAW_S)
    process["resources"] = amounts(spec.control_pod_template, {"cpu": "100m", "memory": "64Mi"}, {})
    grace_s = _PICKER_DRAIN_S + WITHDRAW_S + 5
    pod = template(key, "picker", spec, process, scratch(tmp="/tmp"), {}, grace_s)
    pod["spec"] |= {"serviceAccountName": child(key, "picker"), "automountServiceAccountToken": True}
    pod["spec"]["topologySpreadConstraints"] = [spread(key, "picker")]
    pod["spec"]["securityContext"] |= user(platform)
    return apply_template(pod, spec.control_pod_template, selector(key, "picker"))


def engine_pod(key: Key, role: str, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """Return the pod of an engine: its accelerators, the node's shared memory, and the pod template."""
    component, image = COMPONENTS[role], _image(spec, platform, "engine")
    process = configured(component, image, http_probes("/readyz", "/healthz", ENGINE_METRICS), "aegaeon_sidecar")
    process["command"] += ["--instance", "$(POD_NAME)", "--node", "$(NODE_NAME)"]
    process["env"] = [
        from_field("POD_NAME", "metadata.name"),
        from_field("NODE_NAME", "spec.nodeName"),
        {"name": "OMP_NUM_THREADS", "value": str(spec.threads)},
    ]
    process["ports"] = ports(metrics=ENGINE_METRICS)
    resource = spec.accelerator.resource_name
    process["resources"] = amounts(spec.pod_template, {}, {resource: str(spec.accelerator.count)} if resource else {})
    shared = [_segments(key, spec), *_disk(spec)]
    volumes = [
        *own_volumes(key, component),
        credentials_volume(key),
        *egress_volumes(spec),
        *_models(spec),
        *shared,
        *scratch(tmp="/tmp", cache=CACHE),
    ]
    pod = template(key, component, spec, process, volumes, config, ENGINE_DRAIN_S + 20)
    pod["spec"]["topologySpreadConstraints"] = [spread(key, component)]
    if platform.fixed_user and (owned := [volume for volume in shared if "hostPath" in volume.source]):
        pod["spec"]["initContainers"] = [_hand_over(image, owned, spec)]
    pod["spec"] |= {**_together(key, role), **_account(spec.service_accounts.engines)}
    pod["spec"]["securityContext"] |= user(platform)
    return apply_template(pod, spec.pod_template, selector(key, component))


def _account(name: str | None) -> Json:
    """Return the ServiceAccount of a pod, for its cloud identity; its API token is not mounted."""
    return {"serviceAccountName": name} if name else {}


def _image(spec: GpuPoolSpec, platform: Platform, which: Literal["control", "engine"]) -> Image:
    """Return the pool's image, or the operator's default; for engines that of the pool's backend."""
    own, setting = spec.images, BACKENDS[spec.backend].image if which == "engine" else "control_image"
    name = getattr(own, which) or getattr(platform, setting)
    return Image(name, own.pull_policy or platform.pull_policy)


def _sleep(seconds: int) -> Json:
    return {"preStop": {"sleep": {"seconds": seconds}}}


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


def _batches(spec: GpuPoolSpec) -> list[Volume]:
    """Return the volume of files and batches, or of the credentials for their store."""
    store = spec.batches
    if store is None:
        return []
    if store.claim:
        return [Volume("batches", BATCHES, {"persistentVolumeClaim": {"claimName": store.claim}})]
    ref = store.s3.credentials_secret_ref if store.s3 else None
    if ref is None:
        return []
    items = [{"key": ref.key, "path": "credentials"}]
    source = {"secret": {"secretName": ref.name, "items": items, "defaultMode": 0o440}}
    return [Volume("batch-keys", BATCH_KEYS, source, read_only=True)]


def _segments(key: Key, spec: GpuPoolSpec) -> Volume:
    """Return the tmpfs that the engines of a node share."""
    claim = spec.volumes.shared_claim
    if claim:
        return Volume("segments", SEGMENTS, {"persistentVolumeClaim": {"claimName": claim}})
    path = f"{SEGMENTS}/{key.namespace}.{key.name}"
    return Volume("segments", SEGMENTS, {"hostPath": {"path": path, "type": "DirectoryOrCreate"}})


def _disk(spec: GpuPoolSpec) -> list[Volume]:
    disk = spec.memory.disk
    return [Volume("disk", disk.path, {"hostPath": {"path": disk.path, "type": "DirectoryOrCreate"}})] if disk else []


def _hand_over(image: Image, volumes: list[Volume], spec: GpuPoolSpec) -> Json:
    """Return the init container that gives volumes to the pod's group.

    It has the engine's CPU and memory, since a ResourceQuota needs them for every container; it exits before the engine
    starts.
    """
    template = spec.pod_template.resources
    parts = {"requests": template.requests, "limits": template.limits}
    plain = {
        part: {name: amount for name, amount in amounts.items() if name in _PLAIN} for part, amounts in parts.items()
    }
    resources = {part: amounts for part, amounts in plain.items() if amounts}
    return {
        **({"resources": resources} if resources else {}),
        "name": "hand-over",
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": ["python3", "-c", _HAND_OVER.format(uid=UID), *(volume.path for volume in volumes)],
        "securityContext": {**CONFINED, "runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": volume.name, "mountPath": volume.path} for volume in volumes],
    }


def _together(key: Key, role: str) -> Json:
    """Return the affinity of prefill and decode engines, which hand off KV cache within a node.

    A decode engine requires a prefill engine on its node, and a prefill engine prefers a decode engine: with two
    requirements neither could be scheduled first.
    """
    if role == "decode":
        wish: Json = {"requiredDuringSchedulingIgnoredDuringExecution": [_beside(key, "prefill")]}
    elif role == "prefill":
        weighted = {"weight": 100, "podAffinityTerm": _beside(key, "decode")}
        wish = {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}
    else:
        return {}
    return {"affinity": {"podAffinity": wish}}


def _beside(key: Key, component: str) -> Json:
    return {"topologyKey": HOST, "labelSelector": {"matchLabels": selector(key, component)}}
