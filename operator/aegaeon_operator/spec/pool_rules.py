"""What the API server checks of a whole GpuPool: fields that must fit together.

resources.py has the same for `aegaeon up`; both say the sentences that need no figures.
"""

from __future__ import annotations

from aegaeon_operator.spec.cel import rules

OVERLAP = "memory.disk.path must be neither inside nor around volumes.models.path, whose folders any ModelPool may name"
ONE_DEVICE = "accelerator.count must be 1 with backend vllm; backend torch shares a model among several accelerators"
ON_CPU = "accelerator.device must be cpu with backend vllm; backend torch computes on GPUs"
DEVICE_BYTES = "memory.deviceBytes is needed with accelerator.device cpu; only a GPU's memory is an engine's own"
NO_ADAPTERS = "adapters need backend vllm; backend torch computes models without them"
MOUNTS_OVERLAP = (
    "volumeMounts of podTemplate and controlPodTemplate must be neither inside nor around volumes.models.path and "
    "memory.disk.path, which the operator mounts"
)


_DISK = "self.memory.disk.path"
# Folders that the operator mounts, and each with a `/` behind it; a disk's may have one.
_MOUNTED = (
    ("self.volumes.models", "self.volumes.models.path + '/'"),
    ("self.memory.disk", f"({_DISK}.endsWith('/') ? {_DISK} : {_DISK} + '/')"),
)


def _mounts_apart(of: str) -> str:
    """A rule: no mount of a template meets the folders of models and disk tier."""
    apart = " && ".join(
        f"(!has({owner}) || !((m.mountPath + '/').startsWith({folder}) || ({folder}).startsWith(m.mountPath + '/')))"
        for owner, folder in _MOUNTED
    )
    return f"self.{of}.volumeMounts.all(m, {apart})"


RULES = rules(
    ("has(self.prefill) == has(self.decode)", "prefill and decode need each other; or use engines, which do both"),
    (
        "has(self.engines) || has(self.prefill)",
        "no engines asked for; give engines.replicas, or prefill.replicas and decode.replicas",
    ),
    (
        "!has(oldSelf.prefill) || !has(self.prefill) || has(oldSelf.engines) || !has(self.engines)",
        "the pool has prefill and decode engines, beside which no others are added; kubectl scale changes engines: "
        "change prefill.replicas or decode.replicas with kubectl patch, or make a pool with all three",
    ),
    (
        "!isQuantity(string(self.memory.hostKv)) || !isQuantity(string(self.memory.slabSize)) || "
        "quantity(string(self.memory.hostKv)).asApproximateFloat() >= "
        "quantity(string(self.memory.slabSize)).asApproximateFloat() * double(self.accelerator.count)",
        "memory.hostKv, which the accelerators of an engine share, holds no slab for each of them; raise hostKv or "
        "lower slabSize",
    ),
    (
        "!has(self.memory.disk) || !has(self.volumes) || !has(self.volumes.models) || "
        "!((self.memory.disk.path + '/').startsWith(self.volumes.models.path + '/') || "
        "(self.volumes.models.path + '/').startsWith("
        "self.memory.disk.path.endsWith('/') ? self.memory.disk.path : self.memory.disk.path + '/'))",
        OVERLAP,
    ),
    ("self.backend != 'vllm' || self.accelerator.count == 1", ONE_DEVICE),
    ("self.backend != 'vllm' || self.accelerator.device == 'cpu'", ON_CPU),
    ("self.backend == 'vllm' || !has(self.adapters)", NO_ADAPTERS),
    ("has(self.memory.deviceBytes) || self.accelerator.device != 'cpu'", DEVICE_BYTES),
    (
        "!self.accelerator.device.startsWith('cuda') || has(self.accelerator.resourceName) || "
        "size(self.podTemplate.resources.claims) > 0",
        "accelerator.device cuda:N needs resourceName on Kubernetes, for example nvidia.com/gpu, or "
        "podTemplate.resources.claims: without one of them pods get no GPU",
    ),
    (
        "!has(self.adapters) || !has(self.memory.deviceBytes) || !isQuantity(string(self.adapters.memory)) || "
        "!isQuantity(string(self.memory.deviceBytes)) || !isQuantity(string(self.memory.slabSize)) || "
        "quantity(string(self.memory.deviceBytes)).asApproximateFloat() - "
        "quantity(string(self.adapters.memory)).asApproximateFloat() >= "
        "quantity(string(self.memory.slabSize)).asApproximateFloat()",
        "adapters.memory leaves no slab of memory.deviceBytes; raise deviceBytes",
    ),
    (" && ".join(_mounts_apart(of) for of in ("podTemplate", "controlPodTemplate")), MOUNTS_OVERLAP),
)
