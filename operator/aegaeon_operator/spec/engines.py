"""The engines of a GpuPool: accelerator, memory, scheduling and tuning."""

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
"""Maximum number of sequences that a GPU decodes in one pass over the weights (ROWS in the sidecar's decodes.py)."""
MAX_GRAPHS = 128
"""Default number of decodes that a GPU keeps as captured graphs (MAX_GRAPHS in the sidecar's backends)."""


class Accelerator(Strict):
    """The device and the number of accelerators of an engine."""

    device: Annotated[str, Field(max_length=16, pattern=r"^(cpu|cuda:[0-9]+)$")] = Field(
        default="cpu",
        description="`cpu`, or `cuda:N`: the first engine uses `count` GPUs from GPU N on, the next engine the `count` "
        "after them, and so on; on Kubernetes each engine uses the GPUs allocated to its pod.",
    )
    count: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description="Accelerators of one engine, on one node. Every model is split among them (tensor parallelism), so "
        "a model may be larger than one accelerator's memory; its attention heads must be divisible by `count`.",
    )
    resource_name: QualifiedName | None = Field(
        default=None,
        description="On Kubernetes: extended resource to request, for example nvidia.com/gpu; each engine's pod "
        "requests `count` of it. Device cuda:N needs it or podTemplate.resources.claims. Default: none.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Number format of weights and KV cache."
    )


class ModelDisk(Strict):
    """The disk tier below the host model cache: models fetched from the hub, S3 stores and web servers."""

    path: DiskPath = Field(
        description="Folder on a disk of each node, an absolute path; the engines of a node share it."
    )
    size: PositiveQuantity = Field(
        default=100 << 30,
        description="Maximum size. When it is full, a model is fetched on its first request and replaces the least "
        "recently used ones.",
    )


class AdapterRoom(Strict):
    """Memory and limits of each engine for adapters (LoRA)."""

    max_rank: Literal[8, 16, 32, 64, 128, 256, 320, 512] = Field(
        default=16, description="Maximum rank of an adapter; each adapter slot takes the memory of this rank."
    )
    max_loaded: Annotated[int, Field(ge=1, le=64)] = Field(
        default=4,
        description="Maximum number of adapters of one model on the device, and in one step; further adapters wait for "
        "a slot.",
    )
    memory: PositiveQuantity = Field(
        description="Device memory for the adapters of all models, part of memory.deviceBytes."
    )


class Stage(Strict):
    """The ring of staging buffers between files and memory; each engine has two."""

    chunk: PositiveQuantity = Field(default=4 << 20, description="Bytes read and copied at a time.")
    depth: Annotated[int, Field(ge=1, le=256)] = Field(
        default=4, description="Chunks in flight; more of them hide a slow disk's latency."
    )


class PoolMemory(Strict):
    """Memory of each engine and of each node."""

    model_config = rules(
        (
            "!isQuantity(string(self.slabSize)) || (quantity(string(self.slabSize)).isGreaterThan(quantity('0')) && "
            "quantity(string(self.slabSize)).asInteger() % 4096 == 0)",
            "slabSize must be a multiple of 4Ki",
        ),
        (
            "!has(self.deviceBytes) || !isQuantity(string(self.deviceBytes)) || !isQuantity(string(self.slabSize)) || "
            "!quantity(string(self.deviceBytes)).isLessThan(quantity(string(self.slabSize)))",
            "deviceBytes is less than one slab; raise deviceBytes or lower slabSize",
        ),
        (
            "!isQuantity(string(self.hostKv)) || !isQuantity(string(self.slabSize)) || "
            "!quantity(string(self.hostKv)).isLessThan(quantity(string(self.slabSize)))",
            "hostKv is less than one slab; raise hostKv or lower slabSize",
        ),
        (
            "!isQuantity(string(self.hostModelCache)) || "
            "quantity(string(self.hostModelCache)).isGreaterThan(quantity('0'))",
            "hostModelCache must be more than 0; set at least the size of the largest model",
        ),
    )

    device_bytes: Quantity | None = Field(
        default=None,
        description="Device memory of each accelerator for weights and KV cache together, for example 60Gi. Default "
        "with device cuda:N: the GPU's free memory when its engine starts, less `outsideSlabs`.",
    )
    outside_slabs: PositiveQuantity | None = Field(
        default=None,
        description="Device memory of each accelerator reserved in addition to `deviceBytes`: activations, workspaces, "
        "graphs, compiled kernels. Default: an estimate from backend, device, dtype, maxBatch, maxGraphs and "
        "prefillChunkTokens. Its use is in the status.",
    )
    slab_size: Quantity = Field(
        default=32 << 20,
        description="Unit of allocation of device and host memory; a multiple of 4Ki, small for small models.",
    )
    host_model_cache: Quantity = Field(description="Host memory of each node for weights.")
    host_kv: Quantity = Field(
        description="Host memory of each engine for KV cache that is swapped out or handed off; what is free of it "
        "keeps KV cache of finished sequences."
    )
    disk: ModelDisk | None = Field(
        default=None, description="Disk tier for fetched models; needed for sources `s3` and `http`."
    )
    stage: Stage = Field(default=Stage(), description="Buffers between files and memory.")
    prefix_reuse: bool = Field(
        default=True,
        description=(
            "Keep the KV cache of finished sequences while memory of the device or of `hostKv` is free, and share it "
            "between prompts with the same beginning, within `prefixScope`. Disable it to measure without."
        ),
    )
    prefix_scope: Literal["tenant", "pool"] = Field(
        default="tenant",
        description="Prompts that share KV cache. `tenant`: prompts of the same tenant; clients without a key count as "
        "one tenant. No response then discloses another tenant's prompts. `pool`: all prompts; each response then "
        "discloses how much of its prompt any client has sent before.",
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
                    f"{name} {format_quantity(size)} is less than one slab of {format_quantity(self.slab_size)}; "
                    f"raise {name} or lower slabSize"
                )
        if self.host_model_cache == 0:
            yield "hostModelCache must be more than 0; set at least the size of the largest model"


class Scheduling(Strict):
    """The scheduling policy and its settings."""

    policy: Literal["slack", "paper", "prism"] = Field(
        default="slack",
        description="`slack`: earliest deadline first; the model with the most slack is preempted. "
        "`paper`: grouped first-come-first-served prefill, batched weighted round-robin decode. `prism`: deprecated; a "
        "model is on one engine, chosen by KV pressure, until it is idle. Use `slack`.",
    )
    q_max: PositiveDuration = Field(default=4.0, description="Maximum quota of one turn (policy `paper`).")
    max_group_size: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=8,
        description="Maximum number of requests of one model in a prefill group (policy `paper`).",
    )
    min_stay: PositiveDuration = Field(
        default=0.5,
        description="Minimum time that a model runs before it may be preempted (policy `slack`).",
    )
    quantum_steps: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Decode steps of one turn (policy `slack`): fewer let urgent requests run sooner, more cost less "
        "control and fewer changes of the running model. Default: 8.",
    )
    prompt_part: PositiveDuration | None = Field(
        default=None,
        description="Time after which other models may run between two parts of a long prompt (policy `slack`). "
        "Default: 100ms.",
    )
    late_slack: PositiveDuration | None = Field(
        default=None,
        description="Requests that missed their objective stand back behind those that are due within this time "
        "(policy `slack`). Default: 20s.",
    )
    headroom_percent: Annotated[float, Field(ge=0, le=50)] | None = Field(
        default=None,
        description="Percentage of an engine's memory that stays free for growing KV cache when a model is placed "
        "(policy `slack`). Default: 2.8.",
    )
    warm: bool | None = Field(
        default=None,
        description="Load models into free memory before they are requested, those requested most often first, where "
        "that makes no request late (policy `slack`). Default: false.",
    )
    hold: PositiveDuration = Field(
        default=30.0,
        description="Maximum time that a request waits for an engine before it is answered with 503. While engines "
        "serve its model, a request waits at least until its first token is due by the objective; a batch's request "
        "one minute longer.",
    )
    hold_start: PositiveDuration | None = Field(
        default=None,
        description="Maximum time that a request waits while no engine serves its model and one is being started. "
        "Default: 10m if the `min` of a role is 0, else `hold`.",
    )
    admission: Literal["none", "feasible"] = Field(
        default="none",
        description="`feasible`: answer 503 as soon as the first token cannot be on time, and at the latest after 1.6 "
        "times its objective in the queue. `none`: only `hold` bounds the wait. `none` is the default because "
        "`feasible` refuses nearly all requests where the hardware cannot meet the objective.",
    )
    kv_gate: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="Percentage of an engine's room for KV cache above which no new request begins on it. A request "
        "waits while every engine that may take it is above, and gets 503 with `Retry-After` after `hold`. Where "
        "memory is short, 85 lets fewer running requests pause for new ones, which wait instead. Default: no limit.",
    )
    standby: bool = Field(
        default=False,
        description="On Kubernetes: run a second scheduler, on another node if possible, that takes over within "
        "seconds when the first fails. Without it the operator starts a new scheduler when the first does not answer.",
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port of the scheduler's Prometheus metrics. Default: no metrics port."
    )


class EngineTuning(Strict):
    """Tuning of one engine process."""

    threads: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None,
        description="Compute threads of one engine on a CPU. Default: 1; with `aegaeon up` idle processors of the "
        "machine compute parts of its float32 matrix products as well.",
    )
    max_batch: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None,
        description="Maximum number of sequences in one decode step. Default: 64 on a GPU, which reads the weights "
        "once for up to 64 sequences; 16 on a CPU, where each sequence makes the step longer.",
    )
    max_graphs: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=MAX_GRAPHS,
        description="On a GPU: maximum number of CUDA graphs of decode steps, over all models of an engine. A model "
        "has up to two graphs, and two more for each doubling of the context length above 2048 tokens. Above the "
        "maximum the least recently used graph is dropped; capturing it again takes tens of milliseconds. The estimate "
        "of `outsideSlabs` counts 4Mi for each graph.",
    )
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=65536)] = Field(
        default=512, description="Maximum number of prompt tokens computed in one step (chunked prefill)."
    )
    max_pooled_tokens: Annotated[int, Field(ge=16, le=65536)] | None = Field(
        default=None,
        description="The same for models that generate nothing (embeddings, rerankers, classifiers), whose prompts are "
        "computed together: several in one step, up to so many tokens. Default: prefillChunkTokens. A pool for such "
        "models computes several times as many texts with 4096 on a GPU; the estimate of `outsideSlabs` counts them.",
    )
    lease: PositiveDuration = Field(
        default=10.0,
        description="Time that an engine keeps its sequences after it lost the connection to the scheduler.",
    )
