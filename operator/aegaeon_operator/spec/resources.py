"""The two kinds of `serving.aegaeon.io/v1alpha1`, as a person writes them.

GpuPool belongs to the platform team (hardware, split, policy) and is here; ModelPool is in model_pool.py.
Descriptions are what `kubectl explain` prints; units live in the types (Quantity, Duration).
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


# Pulling an image of some GB and fetching a model of some more.
_START_S = 600.0


class GpuPoolSpec(Strict):
    """Engines, their memory, and how they are shared."""

    model_config = pool_rules.RULES

    backend: Literal["torch", "vllm"] = Field(
        default="torch",
        description="What executes models: `torch` four dense architectures on CPUs and GPUs; `vllm` those of vLLM "
        "with paged attention, quantised ones among them, on CPUs. On Kubernetes it says which image engines have; "
        "elsewhere it has to be installed beside the sidecar.",
    )
    accelerator: Accelerator = Field(default=Accelerator(), description="What an engine runs on.")
    engines: Replicas | None = Field(default=None, description="Engines that both prefill and decode.")
    prefill: Replicas | None = Field(default=None, description="Engines that prefill only; needs `decode`.")
    decode: Replicas | None = Field(default=None, description="Engines that decode only; needs `prefill`.")
    memory: PoolMemory = Field(description="Memory of each engine.")
    adapters: AdapterRoom | None = Field(
        default=None, description="Room for adapters (LoRA); left out: there are none."
    )
    scheduling: Scheduling = Field(default=Scheduling(), description="How engines are shared.")
    tuning: EngineTuning = Field(default=EngineTuning(), description="Knobs of one engine process.")
    allowed_namespaces: Annotated[tuple[NamespaceOrAll, ...], Field(max_length=64)] = Field(
        default=(),
        description="Further namespaces whose ModelPools may use this GpuPool, `*` for all; its own always may.",
    )
    allowed_sources: Annotated[tuple[AllowedSource, ...], Field(max_length=64)] = Field(
        default=(),
        description="Whom models may be fetched from, and where a source may redirect to: hosts (`huggingface.co`, "
        "`*.example.com`, `http://store.internal:9000`, `*` for all) and networks (`10.0.0.0/8`). Left out: any public "
        "address; with `aegaeon up` any. A host named in full may be at a private address; loopback and link-local "
        "addresses need a network. Models of the hub need `huggingface.co` and `*.hf.co`.",
    )
    egress: Egress = Field(
        default=Egress(),
        description="On Kubernetes: the way to sources of models, S3 stores and collectors of traces through a proxy. "
        "Pods read no proxy from their environment; `aegaeon up` reads HTTPS_PROXY, HTTP_PROXY, NO_PROXY and "
        "SSL_CERT_FILE from its own. Within a pool no proxy is used.",
    )
    gateway: GatewayPods = Field(default=GatewayPods(), description="The OpenAI API, and on Kubernetes its pods.")
    tracing: Tracing | None = Field(default=None, description="Traces of requests; left out: none.")
    batches: BatchStore | None = Field(
        default=None, description="Files and batches (/v1/files, /v1/batches); left out: there are none."
    )
    images: PoolImages = Field(default=PoolImages(), description="On Kubernetes: images of the pool's pods.")
    pod_template: PodTemplate = Field(default=PodTemplate(), description="On Kubernetes: laid over the engines' pods.")
    control_pod_template: PodTemplate = Field(
        default=PodTemplate(),
        description="On Kubernetes: laid over the pods of scheduler, gateways and endpoint picker.",
    )
    service_accounts: ServiceAccounts = Field(
        default=ServiceAccounts(),
        description="On Kubernetes: who pods are to a cloud (IRSA, workload identity), by role. Scheduler and endpoint "
        "picker have accounts of the operator's.",
    )
    volumes: Volumes = Field(default=Volumes(), description="On Kubernetes: files of the nodes that pods use.")
    autoscaling: Autoscaling = Field(default=Autoscaling(), description="When engines are added and taken away.")

    @property
    def roles(self) -> dict[str, Replicas]:
        """The engines asked for, by role."""
        asked = {"unified": self.engines, "prefill": self.prefill, "decode": self.decode}
        return {role: one for role, one in asked.items() if one}

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
        """Whether engines of any role come and go by themselves."""
        return any(one.max is not None for one in self.roles.values())

    @property
    def scaling(self) -> str:
        """All that the autoscaler goes by, as text to be compared."""
        bounds = [f"{role}: {one.min} to {one.max}" for role, one in self.roles.items() if one.max is not None]
        return ", ".join([*bounds, str(self.autoscaling)]) if bounds else ""

    @property
    def hold_start_s(self) -> float:
        """Seconds that a request may wait for an engine to start; 0: no longer than for one that runs."""
        from_zero = any(one.min == 0 for one in self.roles.values())
        return self.scheduling.hold_start or (_START_S if from_zero else 0.0)

    @property
    def has_accelerators(self) -> bool:
        """Whether the pods of engines ask a cluster for any."""
        return self.accelerator.resource_name is not None or bool(self.pod_template.resources.claims)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused((*self._roles(), *self._backend(), *self._memory(), *self._folders()))

    def _roles(self) -> Iterator[str]:
        if (self.prefill is None) != (self.decode is None):
            given, lacking = ("decode", "prefill") if self.prefill is None else ("prefill", "decode")
            yield f"{given} needs {lacking} beside it; or use engines, which do both"
        elif self.engines is None and self.prefill is None:
            yield "no engines asked for; give engines.replicas, or prefill.replicas and decode.replicas"

    def _backend(self) -> Iterator[str]:
        if self.backend == "vllm" and self.accelerator.count > 1:
            yield pool_rules.ONE_DEVICE
        if self.backend == "vllm" and self.accelerator.device != "cpu":
            yield pool_rules.ON_CPU
        if self.backend != "vllm" and self.adapters is not None:
            yield pool_rules.NO_ADAPTERS
        if self.memory.device_bytes is None and self.accelerator.device == "cpu":
            yield pool_rules.DEVICE_BYTES

    def _memory(self) -> Iterator[str]:
        count, memory, room = self.accelerator.count, self.memory, self.adapters
        if memory.host_kv < memory.slab_size * count:
            yield (
                f"memory.hostKv {format_quantity(memory.host_kv)} holds no slab of {format_quantity(memory.slab_size)} "
                f"for each of {count} accelerators; raise hostKv or lower slabSize"
            )
        whole = memory.device_bytes
        if room is not None and whole is not None and whole - room.memory < memory.slab_size:
            yield (
                f"adapters.memory {format_quantity(room.memory)} leaves no slab of memory.deviceBytes "
                f"{format_quantity(whole)}; raise deviceBytes"
            )

    def _folders(self) -> Iterator[str]:
        """Of nodes that are mounted into pods."""
        models, disk = self.volumes.models, self.memory.disk
        if disk is not None and models is not None and _meet(disk.path, models.path):
            yield pool_rules.OVERLAP
        owned = [one.path for one in (models, disk) if one is not None]
        mounts = (*self.pod_template.volume_mounts, *self.control_pod_template.volume_mounts)
        if any(_meet(one.mount_path, path) for one in mounts for path in owned):
            yield pool_rules.MOUNTS_OVERLAP


def _meet(one: str, other: str) -> bool:
    """Whether one folder is the other one, or inside it."""
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


_POOL_NAME = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"  # Services, pods and labels add to it, up to 63
_POOL_NAME_SAID = "must be at most 40 small letters, digits and dashes, a letter first: Services are named after it"


class GpuPool(Strict):
    """Hardware that a set of models shares."""

    model_config = rules((f"self.metadata.name.matches('{_POOL_NAME}')", f"metadata.name {_POOL_NAME_SAID}"))

    api_version: Literal["serving.aegaeon.io/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["GpuPool"] = Field(description="GpuPool.")
    metadata: Metadata = Field(description="Name of the pool.")
    spec: GpuPoolSpec = Field(description="What the platform team wants.")

    @field_validator("metadata")
    @classmethod
    def _name_leaves_room(cls, value: Metadata) -> Metadata:
        if not re.fullmatch(_POOL_NAME, value.name):
            raise ValueError(f"name {_POOL_NAME_SAID}")
        return value
