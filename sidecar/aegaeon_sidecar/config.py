"""The sidecar's configuration: one JSON file, read once in `__main__` and passed down. Unknown keys are errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from aegaeon_proto.backends import DEFAULT, BackendName
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.egress import DIRECT, Egress, from_environment
from aegaeon_proto.outbound.limits import Limits
from aegaeon_proto.outbound.policy import Policy
from aegaeon_proto.settings import read_settings
from aegaeon_sidecar.backends import MAX_GRAPHS, AdapterLimits
from aegaeon_sidecar.domain.errors import SettingsError
from aegaeon_sidecar.weights.ring import CHUNK_BYTES, DEPTH


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MemorySettings(_Settings):
    """Memory limits of the sidecar. Fixed at the start: slabs are cut once."""

    device_bytes: int | None = Field(
        default=None,
        gt=0,
        description="device tier of each rank: weights and KV cache share it; None: what a GPU has free at the start, "
        "less outside_bytes",
    )
    outside_bytes: int = Field(
        default=1 << 30,
        gt=0,
        description="reserved on each device beside device_bytes: activations, workspaces, graphs, compiled kernels",
    )
    slab_bytes: int = Field(gt=0, description="the unit in which both tiers are handed out")
    host_kv_bytes: int = Field(gt=0, description="host tier of all ranks: KV cache that is swapped out or handed off")
    host_cache_bytes: int = Field(gt=0, description="weights in shared memory, all sidecars of the node together")
    prefix_reuse: bool = Field(default=True, description="prompts that begin alike share KV; off to measure without")
    stage_chunk_bytes: int = Field(default=CHUNK_BYTES, gt=0, description="read and copied in one go")
    stage_depth: int = Field(default=DEPTH, gt=0, description="chunks in flight in each of the two stage rings")


class DiskSettings(_Settings):
    """The disk tier: models fetched from the hub, S3 stores and web servers. A node's sidecars share it."""

    folder: Path | None = Field(default=None, description="on a disk of this node; None: there is no such tier")
    budget_bytes: int = Field(default=100 << 30, gt=0, description="least recently used models make room")


class SourceSettings(_Settings):
    """Servers that models may be fetched from, and the minimum rate."""

    allowed: tuple[str, ...] = Field(
        default=(), description="hosts and networks, as a GpuPool's allowedSources; none: any public address"
    )
    ambient_credentials: bool = Field(
        default=False,
        description="sources without credentials use this machine's: AWS's, the hub's token and cache, the proxies "
        "of the environment in place of `egress`; only where the author of the manifests owns it",
    )
    egress: Egress = Field(default=DIRECT, description="proxies and authorities of certificates, for sources alone")
    min_bytes_per_s: float = Field(default=65536.0, ge=0, description="a source that sends slower is given up")
    window_s: float = Field(default=60.0, gt=0, description="seconds of waiting for it over which that is measured")

    @field_validator("allowed")
    @classmethod
    def _are_entries(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        Policy(value)
        return value

    @property
    def outbound(self) -> Outbound:
        limits = Limits(min_bytes_per_s=self.min_bytes_per_s, window_s=self.window_s)
        egress = from_environment(os.environ) if self.ambient_credentials else self.egress
        return Outbound(Policy(self.allowed), limits, self.ambient_credentials, egress)


class AdapterSettings(_Settings):
    """Memory reserved for adapters, beside the slabs."""

    max_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = Field(default=16, description="largest rank of one")
    max_loaded: int = Field(default=4, ge=1, description="of one model on the device, and in one step")
    device_bytes: int = Field(gt=0, description="of memory.device_bytes, for those of all models")

    @property
    def limits(self) -> AdapterLimits:
        return AdapterLimits(self.max_rank, self.max_loaded, self.device_bytes)


class SidecarConfig(_Settings):
    """The complete configuration of a sidecar. Seconds, bytes and tokens as the names say."""

    instance: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$", description="unique in the pool; names files")
    node: str = Field(min_length=1, description="sidecars of one node share the segments folder")
    role: Literal["unified", "prefill", "decode"]
    scheduler: str = Field(min_length=1, description="gRPC target to attach to")
    standbys: tuple[str, ...] = Field(default=(), description="targets of schedulers that stand by; one of all leads")
    tls: Path | None = Field(
        default=None, description="folder of ca.crt, tls.crt, tls.key: mutual TLS on every stream; None: plaintext"
    )
    backend: BackendName = DEFAULT
    device: str = Field(default="cpu", description="of the first rank: cpu, or cuda:N")
    ranks: int = Field(default=1, ge=1, le=8, description="devices that share every model: `device` and those after it")
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    memory: MemorySettings
    adapters: AdapterSettings | None = Field(default=None, description="None: there are none")
    disk: DiskSettings = Field(default_factory=DiskSettings)
    sources: SourceSettings = Field(default_factory=SourceSettings)
    segments: Path = Field(description="folder on a tmpfs, shared by the sidecars of the node")
    threads: int = Field(default=1, ge=1, description="threads of the tensor library")
    engines: int = Field(default=0, ge=0, description="that share this machine's processors; 0: it is not known")
    max_batch: int = Field(default=16, ge=1, description="sequences in one decode step at most")
    max_graphs: int = Field(default=MAX_GRAPHS, ge=1, description="decodes of all models that a GPU keeps captured")
    prefill_chunk_tokens: int = Field(default=256, ge=1, description="prompt tokens in one step at most")
    max_pooled_tokens: int | None = Field(
        default=None, ge=1, description="the same of all prompts of a model that generates nothing; None: as of others"
    )
    lease_s: float = Field(default=10.0, gt=0, description="after so long without a scheduler KV is parked on the host")
    drain_s: float = Field(default=20.0, ge=0, description="after SIGTERM sequences have so long to end or to move")
    metrics_listen: str | None = Field(
        default=None, pattern=r"^.+:\d+$", description="host:port of GET /healthz, /readyz and /metrics; None: nowhere"
    )
    heartbeat_s: float = Field(default=0.5, gt=0, description="the scheduler misses it after a few of these")
    hub_cache: Path | None = Field(default=None, description="the hub's without a disk tier; None: its default")

    @property
    def reserved_bytes(self) -> int:
        """Bytes of each device outside its slabs."""
        return self.memory.outside_bytes + self._adapter_bytes

    @property
    def _adapter_bytes(self) -> int:
        return 0 if self.adapters is None else self.adapters.device_bytes

    def slab_count(self, free_bytes: int | None) -> int:
        """Slabs of each rank's device tier; `free_bytes`: free memory of its GPU, None: a CPU.

        Reserved memory is not cut into slabs. Raises SettingsError when it leaves no slab.
        """
        memory = self.memory
        configured = memory.device_bytes or 0
        if free_bytes is not None and configured + memory.outside_bytes > free_bytes:
            raise SettingsError(
                f"{self.device} has {free_bytes} bytes free, and memory.device_bytes and memory.outside_bytes are "
                f"{configured + memory.outside_bytes} together; lower one of them"
            )
        usable = configured or (free_bytes or 0) - memory.outside_bytes
        slabs = (usable - self._adapter_bytes) // memory.slab_bytes
        if slabs < 1:
            raise SettingsError(
                f"{self.device} has {usable} bytes for slabs and adapters, {self._adapter_bytes} of them for adapters, "
                f"which leaves no slab of {memory.slab_bytes}; raise memory.device_bytes, or lower the reservations"
            )
        return slabs

    @model_validator(mode="after")
    def _memory_is_known(self) -> Self:
        if self.memory.device_bytes is None and self.device == "cpu":
            raise ValueError("memory.device_bytes is needed on a CPU, whose memory is not an engine's own")
        if self.memory.device_bytes is not None and self._adapter_bytes + self.memory.slab_bytes > (
            self.memory.device_bytes
        ):
            raise ValueError("adapters.device_bytes leaves no slab of memory.device_bytes")
        return self


def read_config(path: Path, overrides: Mapping[str, str] = MappingProxyType({})) -> SidecarConfig:
    """Read FILE, with `overrides` in place of its values. Raises SettingsError naming the file, the field and the
    fault."""
    return read_settings(path, SidecarConfig, SettingsError, overrides)
