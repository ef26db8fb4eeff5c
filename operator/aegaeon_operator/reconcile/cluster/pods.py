"""Pod templates: the process of each component, confined as far as its devices and volumes allow."""

from __future__ import annotations

from typing import Literal

from aegaeon_operator.reconcile.cluster.egress import egress_volumes
from aegaeon_operator.reconcile.cluster.facts import Json, Key, Platform
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
from aegaeon_operator.reconcile.cluster.overlay import lay_over
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

# Streams get so long to end; then the pod goes, whatever happens.
GATEWAY_DRAIN_S, ENGINE_DRAIN_S = 60, 20
_PICKER_DRAIN_S = 130  # a picker's stream lasts as long as the request that it is about
# Until a Service, or a gateway in front, sends nothing to a pod that is going.
WITHDRAW_S = 8
# The scheduler stays while gateways and engines end what is open, when a whole pool goes.
_SCHEDULER_LINGER_S = 15
_SMALL: Json = {"cpu": "100m", "memory": "256Mi"}
_GATEWAY: Json = {"cpu": "100m", "memory": "512Mi"}  # with its workers and the tokenizers of two or three models
_PLAIN = ("cpu", "memory", "ephemeral-storage")
# hostPath folders belong to root at first: they are handed to the group of the pod. Root without capabilities may.
_HAND_OVER = "import os, sys\nfor path in sys.argv[1:]:\n    os.chown(path, -1, {uid})\n    os.chmod(path, 0o2770)\n"


def scheduler_pod(key: Key, component: str, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """One brain, or the one that stands by. `config` is what a change of must start it anew."""
    probes = http_probes("/readyz", "/healthz", SCHEDULER_METRICS)
    made = configured(component, _image(spec, platform, "control"), probes, "aegaeon_scheduler")
    made["command"] += ["--holder", "$(POD_NAME)"]
    made["env"] = [from_field("POD_NAME", "metadata.name")]
    made["ports"] = ports(grpc=SCHEDULER_PORT, admin=SCHEDULER_ADMIN, metrics=SCHEDULER_METRICS)
    made["lifecycle"] = _sleep(_SCHEDULER_LINGER_S)
    made["resources"] = amounts(spec.control_pod_template, _SMALL, {})
    volumes = [*own_volumes(key, component), *egress_volumes(spec), *scratch(tmp="/tmp")]
    found = template(key, component, spec, made, volumes, config, _SCHEDULER_LINGER_S + 10)
    # Who leads is in a Lease: it alone of the pool's processes, beside the picker, asks the API server.
    found["spec"] |= {"serviceAccountName": child(key, "scheduler"), "automountServiceAccountToken": True}
    other = {"scheduler": "standby", "standby": "scheduler"}[component]
    apart = {"weight": 100, "podAffinityTerm": _beside(key, other)}
    found["spec"]["affinity"] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}}
    found["spec"]["securityContext"] |= user(platform)
    return lay_over(found, spec.control_pod_template, selector(key, component))


def gateway_pod(key: Key, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """The OpenAI API."""
    made = configured("gateway", _image(spec, platform, "control"), http_probes("/readyz", "/healthz", GATEWAY_METRICS))
    address = "[$(POD_IP)]" if platform.ipv6 else "$(POD_IP)"
    made["command"] += ["--name", "$(POD_NAME)", "--sink", f"{address}:{SINK_PORT}"]
    made["env"] = [from_field("POD_NAME", "metadata.name"), from_field("POD_IP", "status.podIP")]
    made["ports"] = ports(http=GATEWAY_PORT, sink=SINK_PORT, metrics=GATEWAY_METRICS)
    made["resources"] = amounts(spec.control_pod_template, _GATEWAY, {})
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
    found = template(key, "gateway", spec, made, volumes, config, GATEWAY_DRAIN_S + WITHDRAW_S + 10)
    found["spec"]["topologySpreadConstraints"] = [spread(key, "gateway")]
    found["spec"] |= _account(spec.service_accounts.gateway)
    found["spec"]["securityContext"] |= user(platform)
    return lay_over(found, spec.control_pod_template, selector(key, "gateway"))


def picker_pod(key: Key, spec: GpuPoolSpec, limits: PickerLimits, platform: Platform) -> Json:
    """The endpoint picker. It alone asks the API server: for the pool's gateway pods."""
    command = ["python3", "-m", "aegaeon_picker", "--pool", key.name, "--namespace", key.namespace]
    command += ["--grace", str(_PICKER_DRAIN_S)]
    if platform.ipv6:  # its defaults are of IPv4
        command += ["--listen", f"{platform.anywhere}:{PICKER_PORT}"]
        command += ["--health-listen", f"{platform.anywhere}:{PICKER_HEALTH}"]
    for name, value in limits.model_dump(exclude_defaults=True).items():
        command += [f"--max-{name.replace('_', '-')}", str(value)]
    probes = grpc_probes("readiness", "liveness", PICKER_HEALTH)
    made = container("picker", _image(spec, platform, "control"), command, probes)
    made["ports"] = ports(grpc=PICKER_PORT, health=PICKER_HEALTH, metrics=PICKER_METRICS)
    made["lifecycle"] = _sleep(WITHDRAW_S)
    made["resources"] = amounts(spec.control_pod_template, {"cpu": "100m", "memory": "64Mi"}, {})
    grace_s = _PICKER_DRAIN_S + WITHDRAW_S + 5
    found = template(key, "picker", spec, made, scratch(tmp="/tmp"), {}, grace_s)
    found["spec"] |= {"serviceAccountName": child(key, "picker"), "automountServiceAccountToken": True}
    found["spec"]["topologySpreadConstraints"] = [spread(key, "picker")]
    found["spec"]["securityContext"] |= user(platform)
    return lay_over(found, spec.control_pod_template, selector(key, "picker"))


def engine_pod(key: Key, role: str, spec: GpuPoolSpec, platform: Platform, config: Json) -> Json:
    """One engine: its accelerators, the node's shared memory, and what the platform team laid over it."""
    component, image = COMPONENTS[role], _image(spec, platform, "engine")
    made = configured(component, image, http_probes("/readyz", "/healthz", ENGINE_METRICS), "aegaeon_sidecar")
    made["command"] += ["--instance", "$(POD_NAME)", "--node", "$(NODE_NAME)"]
    made["env"] = [
        from_field("POD_NAME", "metadata.name"),
        from_field("NODE_NAME", "spec.nodeName"),
        {"name": "OMP_NUM_THREADS", "value": str(spec.threads)},
    ]
    made["ports"] = ports(metrics=ENGINE_METRICS)
    resource = spec.accelerator.resource_name
    made["resources"] = amounts(spec.pod_template, {}, {resource: str(spec.accelerator.count)} if resource else {})
    shared = [_segments(key, spec), *_disk(spec)]
    volumes = [
        *own_volumes(key, component),
        credentials_volume(key),
        *egress_volumes(spec),
        *_models(spec),
        *shared,
        *scratch(tmp="/tmp", cache=CACHE),
    ]
    found = template(key, component, spec, made, volumes, config, ENGINE_DRAIN_S + 20)
    found["spec"]["topologySpreadConstraints"] = [spread(key, component)]
    if platform.fixed_user and (owned := [volume for volume in shared if "hostPath" in volume.source]):
        found["spec"]["initContainers"] = [_hand_over(image, owned, spec)]
    found["spec"] |= {**_together(key, role), **_account(spec.service_accounts.engines)}
    found["spec"]["securityContext"] |= user(platform)
    return lay_over(found, spec.pod_template, selector(key, component))


def _account(name: str | None) -> Json:
    """Of the namespace, for a cloud's identity; its token of the API server stays out of the pod."""
    return {"serviceAccountName": name} if name else {}


def _image(spec: GpuPoolSpec, platform: Platform, which: Literal["control", "engine"]) -> Image:
    """The pool's own, or the operator's; of engines the one with the pool's backend."""
    own = spec.images
    of_backend = {"torch": platform.engine_image, "vllm": platform.vllm_image}
    name = (own.control or platform.control_image) if which == "control" else (own.engine or of_backend[spec.backend])
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
    """Where files and batches are kept, or the credentials of that store."""
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
    """What the engines of a node share, on a tmpfs."""
    claim = spec.volumes.shared_claim
    if claim:
        return Volume("segments", SEGMENTS, {"persistentVolumeClaim": {"claimName": claim}})
    path = f"{SEGMENTS}/{key.namespace}.{key.name}"
    return Volume("segments", SEGMENTS, {"hostPath": {"path": path, "type": "DirectoryOrCreate"}})


def _disk(spec: GpuPoolSpec) -> list[Volume]:
    disk = spec.memory.disk
    return [Volume("disk", disk.path, {"hostPath": {"path": disk.path, "type": "DirectoryOrCreate"}})] if disk else []


def _hand_over(image: Image, volumes: list[Volume], spec: GpuPoolSpec) -> Json:
    """With the engine's CPU and memory, which a quota asks of every container; it ends before the engine takes them."""
    given = spec.pod_template.resources
    parts = {"requests": given.requests, "limits": given.limits}
    plain = {part: {name: one for name, one in of.items() if name in _PLAIN} for part, of in parts.items()}
    resources = {part: of for part, of in plain.items() if of}
    return {
        **({"resources": resources} if resources else {}),
        "name": "hand-over",
        "image": image.name,
        "imagePullPolicy": image.pull_policy,
        "command": ["python3", "-c", _HAND_OVER.format(uid=UID), *(one.path for one in volumes)],
        "securityContext": {**CONFINED, "runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": one.name, "mountPath": one.path} for one in volumes],
    }


def _together(key: Key, role: str) -> Json:
    """KV cache is handed off within a node: no decode engine without a prefill engine, and the other way if it can be.

    Both as requirements would let neither of the first two be placed.
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
