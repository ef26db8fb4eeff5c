"""The two kinds of `serving.aegaeon.io/v1alpha1`: GpuPool, and ModelPool from model_pool.py.

The platform team writes GpuPools: hardware, roles of engines, policy. `kubectl explain` prints the descriptions; units
are in the types (Quantity, Duration).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from aegaeon_operator.spec import pool_rules
from aegaeon_operator.spec.base import (
    API_VERSION,
    GROUP,
    VERSION,
    Metadata,
    Strict,
)
from aegaeon_operator.spec.batches import BatchStore
from aegaeon_operator.spec.cel import rules
from aegaeon_operator.spec.egress import Egress
from aegaeon_operator.spec.engines import PASS_ROWS, Accelerator, AdapterRoom, EngineTuning, PoolMemory, Scheduling
from aegaeon_operator.spec.kubernetes import (
    Autoscaling,
    GatewayPods,
    NamespaceOrAll,
    PoolImages,
    ServiceAccounts,
)
from aegaeon_operator.spec.model_pool import ModelPool, Quota, ServedModel, Tenant
from aegaeon_operator.spec.pods import PodTemplate
from aegaeon_operator.spec.quantity import format_quantity
from aegaeon_operator.spec.replicas import Replicas
from aegaeon_operator.spec.servers import AllowedSource
from aegaeon_operator.spec.sources import Source
from aegaeon_operator.spec.tracing import Tracing
from aegaeon_operator.spec.volumes import Volumes
from aegaeon_proto.backends import BACKENDS, DEFAULT, BackendName

__all__ = [
    "API_VERSION",
    "GROUP",
    "VERSION",
    "GpuPool",
    "GpuPoolSpec",
    "ModelPool",
    "Quota",
    "ServedModel",
    "Source",
    "Strict",
    "Tenant",
]

# ---- GpuPool -------------------------------------------------------------------------------------------------------


# Time to pull an image of several GB and to fetch a larger model.
_START_S = 600.0


class GpuPoolSpec(Strict):
    """Engines, their memory, and how they are shared."""

    model_config = pool_rules.RULES

    backend: BackendName = Field(
        default=DEFAULT,
        description="Execution backend. "
        + "".join(f"`{name}`: {kind.models}. " for name, kind in BACKENDS.items())
        + "On Kubernetes it selects the engines' image; with `aegaeon up` it must be installed beside the sidecar.",
    )
    accelerator: Accelerator = Field(
        default=Accelerator(), description="Device and number of accelerators of an engine."
    )
    engines: Replicas | None = Field(default=None, description="Engines that prefill and decode.")
    prefill: Replicas | None = Field(default=None, description="Engines that prefill only; needs `decode`.")
    decode: Replicas | None = Field(default=None, description="Engines that decode only; needs `prefill`.")
    memory: PoolMemory = Field(description="Memory of each engine.")
    adapters: AdapterRoom | None = Field(
        default=None, description="Memory and limits for adapters (LoRA); default: no adapters."
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="Scheduling policy and its settings.")
    tuning: EngineTuning = Field(default=EngineTuning(), description="Tuning of the engine processes.")
    allowed_namespaces: Annotated[tuple[NamespaceOrAll, ...], Field(max_length=64)] = Field(
        default=(),
        description="Other namespaces whose ModelPools may use this GpuPool; `*`: all. Its own namespace always may.",
    )
    allowed_sources: Annotated[tuple[AllowedSource, ...], Field(max_length=64)] = Field(
        default=(),
        description="Servers that models may be fetched from and redirected to: hosts (`huggingface.co`, "
        "`*.example.com`, `http://store.internal:9000`, `*` for all) and networks (`10.0.0.0/8`). Default: any public "
        "address; with `aegaeon up` any address. A host with its full name may have a private address; loopback and "
        "link-local addresses need a network. Models of the hub need `huggingface.co` and `*.hf.co`.",
    )
    egress: Egress = Field(
        default=Egress(),
        description="On Kubernetes: proxies for model sources, S3 stores and trace collectors. Pods ignore proxies in "
        "their environment; `aegaeon up` reads HTTPS_PROXY, HTTP_PROXY, NO_PROXY and SSL_CERT_FILE from its own. "
        "Connections within a pool use no proxy.",
    )
    gateway: GatewayPods = Field(default=GatewayPods(), description="The gateways, which serve the OpenAI API.")
    tracing: Tracing | None = Field(default=None, description="Traces of requests; default: none.")
    batches: BatchStore | None = Field(
        default=None, description="Storage of files and batches (/v1/files, /v1/batches); default: these APIs are off."
    )
    images: PoolImages = Field(default=PoolImages(), description="On Kubernetes: images of the pool's pods.")
    pod_template: PodTemplate = Field(
        default=PodTemplate(), description="On Kubernetes: template for the engines' pods."
    )
    control_pod_template: PodTemplate = Field(
        default=PodTemplate(),
        description="On Kubernetes: template for the pods of scheduler, gateways and endpoint picker.",
    )
    service_accounts: ServiceAccounts = Field(
        default=ServiceAccounts(),
        description="On Kubernetes: ServiceAccounts of engines and gateways, for cloud identities (IRSA, workload "
        "identity). The operator creates those of scheduler and endpoint picker.",
    )
    volumes: Volumes = Field(default=Volumes(), description="On Kubernetes: files of the nodes that pods use.")
    autoscaling: Autoscaling = Field(default=Autoscaling(), description="Conditions for adding and removing engines.")

    @property
    def roles(self) -> dict[str, Replicas]:
        """The engines in the spec, by role."""
        roles = {"unified": self.engines, "prefill": self.prefill, "decode": self.decode}
        return {role: replicas for role, replicas in roles.items() if replicas}

    @property
    def threads(self) -> int:
        """Compute threads of one engine on a CPU."""
        return self.tuning.threads or 1

    @property
    def max_batch(self) -> int:
        """Sequences in one decode step."""
        return self.tuning.max_batch or (16 if self.accelerator.device == "cpu" else PASS_ROWS)

    @property
    def scaled(self) -> bool:
        """True if any role is autoscaled."""
        return any(replicas.max is not None for replicas in self.roles.values())

    @property
    def scaling(self) -> str:
        """The autoscaler's settings as text, to detect changes."""
        autoscaled = {role: replicas for role, replicas in self.roles.items() if replicas.max is not None}
        bounds = [f"{role}: {replicas.min} to {replicas.max}" for role, replicas in autoscaled.items()]
        return ", ".join([*bounds, str(self.autoscaling)]) if bounds else ""

    @property
    def hold_start_s(self) -> float:
        """Seconds that a request may wait for an engine to start; 0: as long as for a running engine."""
        from_zero = any(replicas.min == 0 for replicas in self.roles.values())
        return self.scheduling.hold_start or (_START_S if from_zero else 0.0)

    @property
    def has_accelerators(self) -> bool:
        """True if the engines' pods request accelerators from the cluster."""
        return self.accelerator.resource_name is not None or bool(self.pod_template.resources.claims)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused((*self._roles(), *self._backend(), *self._memory(), *self._folders()))

    def _roles(self) -> Iterator[str]:
        if (self.prefill is None) != (self.decode is None):
            present, missing = ("decode", "prefill") if self.prefill is None else ("prefill", "decode")
            yield f"{present} needs {missing} as well; or use engines, which do both"
        elif self.engines is None and self.prefill is None:
            yield "no engines; set engines.replicas, or prefill.replicas and decode.replicas"

    def _backend(self) -> Iterator[str]:
        kind = BACKENDS[self.backend]
        if self.accelerator.count > 1 and not kind.several_devices:
            yield pool_rules.one_device(kind.name)
        if self.accelerator.device != "cpu" and not kind.gpus:
            yield pool_rules.on_cpu(kind.name)
        if self.adapters is not None and not kind.adapters:
            yield pool_rules.no_adapters(kind.name)
        if self.memory.device_bytes is None and self.accelerator.device == "cpu":
            yield pool_rules.DEVICE_BYTES

    def _memory(self) -> Iterator[str]:
        count, memory, adapters = self.accelerator.count, self.memory, self.adapters
        if memory.host_kv < memory.slab_size * count:
            yield (
                f"memory.hostKv {format_quantity(memory.host_kv)} is less than one slab of "
                f"{format_quantity(memory.slab_size)} for each of {count} accelerators; raise hostKv or lower slabSize"
            )
        device = memory.device_bytes
        if adapters is not None and device is not None and device - adapters.memory < memory.slab_size:
            yield (
                f"adapters.memory {format_quantity(adapters.memory)} leaves less than one slab of memory.deviceBytes "
                f"{format_quantity(device)}; raise deviceBytes"
            )

    def _folders(self) -> Iterator[str]:
        """Yield the overlaps between folders that are mounted into pods."""
        models, disk = self.volumes.models, self.memory.disk
        if disk is not None and models is not None and _overlap(disk.path, models.path):
            yield pool_rules.OVERLAP
        folders = [volume.path for volume in (models, disk) if volume is not None]
        mounts = (*self.pod_template.volume_mounts, *self.control_pod_template.volume_mounts)
        if any(_overlap(mount.mount_path, folder) for mount in mounts for folder in folders):
            yield pool_rules.MOUNTS_OVERLAP


def _overlap(folder: str, other: str) -> bool:
    """Return whether two folders are the same, or either is inside the other."""
    first, second = PurePosixPath(folder), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


_POOL_NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"  # names of Services, pods and labels append to it, up to 63
_POOL_NAME_MESSAGE = (
    "must be at most 40 lower-case letters, digits and '-', with a letter first: names of Services are derived from it"
)


class GpuPool(Strict):
    """Accelerators shared by a set of models."""

    model_config = rules((f"self.metadata.name.matches('{_POOL_NAME}')", f"metadata.name {_POOL_NAME_MESSAGE}"))

    api_version: Literal["serving.aegaeon.io/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["GpuPool"] = Field(description="GpuPool.")
    metadata: Metadata = Field(description="Name of the pool.")
    spec: GpuPoolSpec = Field(description="Desired state, written by the platform team.")

    @field_validator("metadata")
    @classmethod
    def _name_leaves_room(cls, value: Metadata) -> Metadata:
        if not re.fullmatch(_POOL_NAME, value.name):
            raise ValueError(f"name {_POOL_NAME_MESSAGE}")
        return value
