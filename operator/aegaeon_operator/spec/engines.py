"""What a GpuPool says of its engines: what they run on, their memory, how they are shared, and their knobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import PositiveDuration, PositiveQuantity, Strict
from aegaeon_operator.spec.cel import rules
from aegaeon_operator.spec.kubernetes import QualifiedName
from aegaeon_operator.spec.quantity import Quantity, format_quantity
from aegaeon_operator.spec.volumes import DiskPath

PASS_ROWS = 64
"""Sequences whose decodes a GPU computes in one pass over the weights, at most (ROWS in the sidecar's decodes.py)."""
MAX_GRAPHS = 128
"""Decodes that a GPU keeps captured unless the manifest says otherwise (MAX_GRAPHS in the sidecar's backends)."""


class Accelerator(Strict):
    """What an engine runs on."""

    device: Annotated[str, Field(max_length=16, pattern=r"^(cpu|cuda:[0-9]+)$")] = Field(
        default="cpu",
        description="`cpu`, or `cuda:N`: the first engine takes GPU N and those after it, as many as `count`, the next "
        "engine the ones after those, and so on; on Kubernetes each takes the GPUs that it is given.",
    )
    count: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description="Accelerators of one engine, on one node. They share every model (tensor parallelism), so that one "
        "fits that is too large for one of them, and its attention heads must divide among them.",
    )
    resource_name: QualifiedName | None = Field(
        default=None,
        description="Extended resource of which every engine's pod asks for `count`, for example nvidia.com/gpu; "
        "needed there with device cuda:N, or podTemplate.resources.claims; left out: none.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Number format of weights and KV cache."
    )


class ModelDisk(Strict):
    """The disk tier: models fetched from the hub, S3 stores and web servers, kept below the host model cache."""

    path: DiskPath = Field(
        description="Folder on a disk of each node, an absolute path; the engines of a node share it."
    )
    size: PositiveQuantity = Field(
        default=100 << 30,
        description="Most that it may take. Models that find no room are fetched when they are asked for, in place of "
        "the least recently used ones.",
    )


class AdapterRoom(Strict):
    """What each engine reserves for adapters (LoRA)."""

    max_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = Field(
        default=16, description="Largest rank of an adapter; every place for one takes memory for this rank."
    )
    max_loaded: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4,
        description="Adapters of one model on the device; more take turns. One step computes as many different ones.",
    )
    memory: PositiveQuantity = Field(
        description="Device memory for the adapters of all models, part of memory.deviceBytes."
    )


class Stage(Strict):
    """The ring of buffers between files and memory, two of them in each engine."""

    chunk: PositiveQuantity = Field(default=4 << 20, description="Bytes read and copied in one go.")
    depth: Annotated[int, Field(ge=1, le=256)] = Field(
        default=4, description="Chunks in flight; more hide more of a disk's delay."
    )


class PoolMemory(Strict):
    """Memory of each engine, and of each node."""

    model_config = rules(
        (
            "!isQuantity(string(self.slabSize)) || (quantity(string(self.slabSize)).isGreaterThan(quantity('0')) && "
            "quantity(string(self.slabSize)).asInteger() % 4096 == 0)",
            "slabSize must be a multiple of 4Ki",
        ),
        (
            "!has(self.deviceBytes) || !isQuantity(string(self.deviceBytes)) || !isQuantity(string(self.slabSize)) || "
            "!quantity(string(self.deviceBytes)).isLessThan(quantity(string(self.slabSize)))",
            "deviceBytes holds no slab; raise deviceBytes or lower slabSize",
        ),
        (
            "!isQuantity(string(self.hostKv)) || !isQuantity(string(self.slabSize)) || "
            "!quantity(string(self.hostKv)).isLessThan(quantity(string(self.slabSize)))",
            "hostKv holds no slab; raise hostKv or lower slabSize",
        ),
        (
            "!isQuantity(string(self.hostModelCache)) || "
            "quantity(string(self.hostModelCache)).isGreaterThan(quantity('0'))",
            "hostModelCache holds no model; give it the size of the largest model at least",
        ),
    )

    device_bytes: Quantity | None = Field(
        default=None,
        description="Device memory of each accelerator for weights and KV cache together, for example 60Gi. Left out "
        "with device cuda:N: what a GPU has free when its engine starts, less `outsideSlabs`.",
    )
    outside_slabs: PositiveQuantity | None = Field(
        default=None,
        description="Device memory of each accelerator that is reserved beside `deviceBytes`: activations, workspaces, "
        "graphs, compiled kernels. Left out: an estimate of backend, device, dtype, maxBatch, maxGraphs and "
        "prefillChunkTokens. Status says what is used of it.",
    )
    slab_size: Quantity = Field(
        default=32 << 20,
        description="Unit in which device and host memory are handed out; a multiple of 4Ki; small for small models.",
    )
    host_model_cache: Quantity = Field(description="Host memory of a node for weights.")
    host_kv: Quantity = Field(description="Host memory of one engine for KV cache that is swapped out or handed off.")
    disk: ModelDisk | None = Field(
        default=None, description="Where models from S3 stores and web servers are kept; needed for such sources."
    )
    stage: Stage = Field(default=Stage(), description="Buffers between files and memory.")
    prefix_reuse: bool = Field(
        default=True,
        description=(
            "Keep KV cache of ended sequences while there is room, and share it between prompts that begin alike, as "
            "far as `prefixScope` says. Turn it off to measure without."
        ),
    )
    prefix_scope: Literal["tenant", "pool"] = Field(
        default="tenant",
        description="Whose prompts share KV cache. `tenant`: each tenant's own, and those of clients without a key "
        "together, so that no answer tells what others asked. `pool`: all; every answer then tells how much of its "
        "prompt anybody has sent before.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        return self._refused(self._slabs())

    def _slabs(self) -> Iterator[str]:
        if self.slab_size == 0 or self.slab_size % 4096:
            yield f"slabSize {format_quantity(self.slab_size)} is not a multiple of 4Ki"
        for name, size in (("deviceBytes", self.device_bytes), ("hostKv", self.host_kv)):
            if size is not None and size < self.slab_size:
                yield (
                    f"{name} {format_quantity(size)} holds no slab of {format_quantity(self.slab_size)}; "
                    f"raise {name} or lower slabSize"
                )
        if self.host_model_cache == 0:
            yield "hostModelCache 0 holds no model; give it the size of the largest model at least"


class Scheduling(Strict):
    """How engines are shared."""

    policy: Literal["slack", "paper", "prism"] = Field(
        default="slack",
        description="`slack`: earliest deadline first; the model with the most slack is preempted. "
        "`paper`: grouped first-come-first-served prefill, batched weighted round-robin decode. `prism`: a model is on "
        "one engine, chosen by KV pressure, until it is idle.",
    )
    q_max: PositiveDuration = Field(default=4.0, description="Longest quota of one turn (policy `paper`).")
    max_group_size: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=8,
        description="Requests of one model that a prefill group takes in all before the next (policy `paper`).",
    )
    min_stay: PositiveDuration = Field(
        default=0.5,
        description="How long a model runs before it may be preempted (policy `slack`).",
    )
    hold: PositiveDuration = Field(
        default=30.0,
        description="How long a request may wait for an engine before it is answered with 503; where engines serve its "
        "model at least until its first token is due by the objective, a batch's request a minute later.",
    )
    hold_start: PositiveDuration | None = Field(
        default=None,
        description="The same while no engine serves its model because one is being started; left out: 10m where the "
        "`min` of a role is 0, else `hold`.",
    )
    admission: Literal["none", "feasible"] = Field(
        default="none",
        description="`feasible`: answer 503 at once when the first token cannot come in time, and at the latest after "
        "1.6 times its objective in the queue. `none`: `hold` alone bounds the wait; the default, since where the "
        "hardware cannot meet the objective `feasible` refuses nearly everything.",
    )
    standby: bool = Field(
        default=False,
        description="On Kubernetes: a second scheduler, on another node where there is one, that takes over within "
        "seconds when the first is lost. Without it the operator starts one when the first does not answer.",
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port of the scheduler's Prometheus metrics; without it they are not served."
    )


class EngineTuning(Strict):
    """Knobs of one engine process."""

    threads: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None,
        description="Compute threads of one engine on a CPU. Left out: 1; on one machine, with `aegaeon up`, "
        "processors that are idle take part in its products in float32 as well.",
    )
    max_batch: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Sequences in one decode step. Left out: 64 on a GPU, which reads all weights once for up to so "
        "many, 16 on a CPU, whose step takes longer with each.",
    )
    max_graphs: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=MAX_GRAPHS,
        description="On a GPU: decodes, of all models of an engine, that are kept captured as CUDA graphs. A model has "
        "up to two, and as many again for each doubling of contexts above 2048 tokens that occur. Beyond the number "
        "the least recently used one is dropped, and captured anew when it is needed, which takes tens of "
        "milliseconds. `outsideSlabs` is estimated with 4Mi for each.",
    )
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=65536)] = Field(
        default=512, description="Longest part of a prompt computed in one go, in tokens."
    )
    lease: PositiveDuration = Field(
        default=10.0, description="How long an engine keeps sequences on its device after it lost the scheduler."
    )
