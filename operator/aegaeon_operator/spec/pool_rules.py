"""Rules across the fields of a GpuPool, checked by the API server.

resources.py has the same checks for `aegaeon up`; they share the messages without figures.
"""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.spec.cel import rules
from aegaeon_proto.backends import BACKENDS, having

OVERLAP = (
    "memory.disk.path and volumes.models.path must not contain each other, since any ModelPool may use the folders "
    "below volumes.models.path"
)
DEVICE_BYTES = "memory.deviceBytes is required with accelerator.device cpu"
MOUNTS_OVERLAP = (
    "volumeMounts of podTemplate and controlPodTemplate must not overlap with volumes.models.path and "
    "memory.disk.path, which the operator mounts; choose another mountPath"
)


def one_device(backend: str) -> str:
    """Return the message for several accelerators with a backend for one."""
    other = having("several_devices")
    return f"accelerator.count must be 1 with backend {backend}; use backend {other} to split models among accelerators"


def on_cpu(backend: str) -> str:
    """Return the message for a GPU with a backend for CPUs."""
    return f"accelerator.device must be cpu with backend {backend}; use backend {having('gpus')} for GPUs"


def no_adapters(backend: str) -> str:
    """Return the message for adapters with a backend without them."""
    return f"adapters need backend {having('adapters')}; backend {backend} does not support them"


def _of_backends() -> Iterator[tuple[str, str]]:
    """Yield the rules about what a backend lacks."""
    for name, kind in BACKENDS.items():
        if not kind.several_devices:
            yield f"self.backend != '{name}' || self.accelerator.count == 1", one_device(name)
        if not kind.gpus:
            yield f"self.backend != '{name}' || self.accelerator.device == 'cpu'", on_cpu(name)
        if not kind.adapters:
            yield f"self.backend != '{name}' || !has(self.adapters)", no_adapters(name)


_DISK = "self.memory.disk.path"
# Folders that the operator mounts, each with a final `/`; the disk's path may already have one.
_MOUNTED = (
    ("self.volumes.models", "self.volumes.models.path + '/'"),
    ("self.memory.disk", f"({_DISK}.endsWith('/') ? {_DISK} : {_DISK} + '/')"),
)


def _mounts_apart(of: str) -> str:
    """Return a rule: no mount of a template overlaps with the folders of models and disk tier."""
    apart = " && ".join(
        f"(!has({owner}) || !((m.mountPath + '/').startsWith({folder}) || ({folder}).startsWith(m.mountPath + '/')))"
        for owner, folder in _MOUNTED
    )
    return f"self.{of}.volumeMounts.all(m, {apart})"


RULES = rules(
    ("has(self.prefill) == has(self.decode)", "prefill and decode must be set together; or use engines, which do both"),
    (
        "has(self.engines) || has(self.prefill)",
        "no engines; set engines.replicas, or prefill.replicas and decode.replicas",
    ),
    (
        "!has(oldSelf.prefill) || !has(self.prefill) || has(oldSelf.engines) || !has(self.engines)",
        "engines cannot be added to a pool with prefill and decode engines, and kubectl scale changes engines: "
        "change prefill.replicas or decode.replicas with kubectl patch, or create a pool with all three",
    ),
    (
        "!isQuantity(string(self.memory.hostKv)) || !isQuantity(string(self.memory.slabSize)) || "
        "quantity(string(self.memory.hostKv)).asApproximateFloat() >= "
        "quantity(string(self.memory.slabSize)).asApproximateFloat() * double(self.accelerator.count)",
        "memory.hostKv is less than one slab for each of the engine's accelerators, which share it; raise hostKv or "
        "lower slabSize",
    ),
    (
        "!has(self.memory.disk) || !has(self.volumes) || !has(self.volumes.models) || "
        "!((self.memory.disk.path + '/').startsWith(self.volumes.models.path + '/') || "
        "(self.volumes.models.path + '/').startsWith("
        "self.memory.disk.path.endsWith('/') ? self.memory.disk.path : self.memory.disk.path + '/'))",
        OVERLAP,
    ),
    *_of_backends(),
    ("has(self.memory.deviceBytes) || self.accelerator.device != 'cpu'", DEVICE_BYTES),
    (
        "!self.accelerator.device.startsWith('cuda') || has(self.accelerator.resourceName) || "
        "size(self.podTemplate.resources.claims) > 0",
        "accelerator.device cuda:N needs accelerator.resourceName, for example nvidia.com/gpu, or "
        "podTemplate.resources.claims on Kubernetes; without one of them pods get no GPU",
    ),
    (
        "!has(self.adapters) || !has(self.memory.deviceBytes) || !isQuantity(string(self.adapters.memory)) || "
        "!isQuantity(string(self.memory.deviceBytes)) || !isQuantity(string(self.memory.slabSize)) || "
        "quantity(string(self.memory.deviceBytes)).asApproximateFloat() - "
        "quantity(string(self.adapters.memory)).asApproximateFloat() >= "
        "quantity(string(self.memory.slabSize)).asApproximateFloat()",
        "adapters.memory leaves less than one slab of memory.deviceBytes; raise deviceBytes",
    ),
    (" && ".join(_mounts_apart(of) for of in ("podTemplate", "controlPodTemplate")), MOUNTS_OVERLAP),
)
