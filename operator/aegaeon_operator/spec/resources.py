"""The two kinds of `serving.aegaeon.io/v1alpha1`, as a person writes them.

GpuPool belongs to the platform team (hardware, split, policy); ModelPool to a tenant team (models, objectives).
Descriptions are what `kubectl explain` prints; units live in the types (Quantity, Duration).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from aegaeon_operator.spec.cel import field_rules, list_map, rules
from aegaeon_operator.spec.quantity import Duration, Quantity, format_quantity

GROUP = "serving.aegaeon.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_SERVED_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$"

_LONGER_THAN_0 = field_rules(("duration(self) > duration('0s')", "must be longer than 0s"))
_MORE_THAN_0 = field_rules(("quantity(string(self)).isGreaterThan(quantity('0'))", "must be more than 0"))
_UNCHANGED = field_rules(("self == oldSelf", "cannot be changed; delete the object and make it anew"))
_SAME_FILES = field_rules(("self == oldSelf", "cannot be changed; serve the new files under another name"))

PositiveQuantity = Annotated[Quantity, Field(gt=0, json_schema_extra=_MORE_THAN_0)]
PositiveDuration = Annotated[Duration, Field(gt=0, json_schema_extra=_LONGER_THAN_0)]
ObjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=_DNS_LABEL)]
ServedName = Annotated[str, Field(min_length=1, max_length=200, pattern=_SERVED_NAME)]


class Strict(BaseModel):
    """Frozen, camelCase outside, no unknown fields, no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class Metadata(Strict):
    """The part of Kubernetes' object metadata that is used here."""

    name: ObjectName = Field(description="Name of the object, unique among its kind.")
    namespace: ObjectName = Field(default="default", description="Namespace of the object.")
    labels: dict[str, str] = Field(default={}, description="Labels of the object.")
    annotations: dict[str, str] = Field(default={}, description="Annotations of the object.")


# ---- GpuPool -------------------------------------------------------------------------------------------------------


class Accelerator(Strict):
    """What an engine runs on."""

    device: Annotated[str, Field(pattern=r"^(cpu|cuda:[0-9]+)$")] = Field(
        default="cpu",
        description="`cpu`, or `cuda:N`: the first engine takes GPU N, the next one GPU N+1, and so on.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Number format of weights and KV cache."
    )


class Replicas(Strict):
    """How many engines of one role."""

    replicas: Annotated[int, Field(ge=1, le=1024)] = Field(description="Engines of this role.")


class ModelDisk(Strict):
    """The disk tier: models fetched from S3 stores and web servers, kept below the host model cache."""

    path: Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^/")] = Field(
        description="Folder on a disk of each node, an absolute path; the engines of a node share it."
    )
    size: PositiveQuantity = Field(
        default=100 << 30, description="Most that it may take; the models used longest ago make room."
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
            "quantity(string(self.slabSize)).isGreaterThan(quantity('0')) && "
            "quantity(string(self.slabSize)).asInteger() % 4096 == 0",
            "slabSize must be a multiple of 4Ki",
        ),
        (
            "!quantity(string(self.deviceBytes)).isLessThan(quantity(string(self.slabSize)))",
            "deviceBytes holds no slab; raise deviceBytes or lower slabSize",
        ),
        (
            "!quantity(string(self.hostKv)).isLessThan(quantity(string(self.slabSize)))",
            "hostKv holds no slab; raise hostKv or lower slabSize",
        ),
        (
            "quantity(string(self.hostModelCache)).isGreaterThan(quantity('0'))",
            "hostModelCache holds no model; give it the size of the largest model at least",
        ),
    )

    device_bytes: Quantity = Field(
        description="Device memory of one engine for weights and KV cache together, for example 60Gi."
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
            "Keep KV cache that nobody holds while there is room, and share it between prompts that begin alike. Turn "
            "it off to measure without, or where the time to a first token must not tell what others asked."
        ),
    )

    @model_validator(mode="after")
    def _slabs_divide(self) -> Self:
        if self.slab_size == 0 or self.slab_size % 4096:
            raise ValueError(f"slabSize {format_quantity(self.slab_size)} is not a multiple of 4Ki")
        for name, size in (("deviceBytes", self.device_bytes), ("hostKv", self.host_kv)):
            if size < self.slab_size:
                raise ValueError(
                    f"{name} {format_quantity(size)} holds no slab of {format_quantity(self.slab_size)}; "
                    f"raise {name} or lower slabSize"
                )
        if self.host_model_cache == 0:
            raise ValueError("hostModelCache 0 holds no model; give it the size of the largest model at least")
        return self


class Scheduling(Strict):
    """How engines are shared."""

    policy: Literal["aegaeon", "paper"] = Field(
        default="aegaeon",
        description="`aegaeon`: whoever's next token is due first runs, whoever has most slack gives way. "
        "`paper`: grouped first-come-first-served prefill, batched weighted round-robin decode.",
    )
    q_max: PositiveDuration = Field(default=4.0, description="Longest quota of one turn (policy `paper`).")
    max_group_size: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=8,
        description="Requests of one model that a prefill group takes in all before the next (policy `paper`).",
    )
    hold: PositiveDuration = Field(
        default=30.0, description="How long a request may wait for an engine before it is answered with 503."
    )
    admission: Literal["none", "feasible"] = Field(
        default="none",
        description="`feasible`: answer 503 at once when the first token cannot come in time, and at the latest after "
        "1.6 times its objective in the queue. `none`: `hold` alone bounds the wait; the default, since where the "
        "hardware cannot meet the objective `feasible` refuses nearly everything.",
    )
    metrics_port: Annotated[int, Field(ge=1, le=65535)] | None = Field(
        default=None, description="Port of the scheduler's Prometheus metrics; without it they are not served."
    )


class EngineTuning(Strict):
    """Knobs of one engine process."""

    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1, description="Compute threads of one engine on a CPU."
    )
    max_batch: Annotated[int, Field(ge=1, le=1024)] = Field(default=16, description="Sequences in one decode step.")
    prefill_chunk_tokens: Annotated[int, Field(ge=16, le=65536)] = Field(
        default=512, description="Longest part of a prompt computed in one go, in tokens."
    )
    lease: PositiveDuration = Field(
        default=10.0, description="How long an engine keeps sequences on its device after it lost the scheduler."
    )


class GpuPoolSpec(Strict):
    """Engines, their memory, and how they are shared."""

    model_config = rules(
        ("has(self.prefill) == has(self.decode)", "prefill and decode need each other; or use engines, which do both"),
        (
            "has(self.engines) || has(self.prefill)",
            "no engines asked for; give engines.replicas, or prefill.replicas and decode.replicas",
        ),
    )

    backend: Literal["torch"] = Field(default="torch", description="What executes models.")
    accelerator: Accelerator = Field(default=Accelerator(), description="What an engine runs on.")
    engines: Replicas | None = Field(default=None, description="Engines that both prefill and decode.")
    prefill: Replicas | None = Field(default=None, description="Engines that prefill only; needs `decode`.")
    decode: Replicas | None = Field(default=None, description="Engines that decode only; needs `prefill`.")
    memory: PoolMemory = Field(description="Memory of each engine.")
    scheduling: Scheduling = Field(default=Scheduling(), description="How engines are shared.")
    tuning: EngineTuning = Field(default=EngineTuning(), description="Knobs of one engine process.")

    @model_validator(mode="after")
    def _roles(self) -> Self:
        if (self.prefill is None) != (self.decode is None):
            given, lacking = ("decode", "prefill") if self.prefill is None else ("prefill", "decode")
            raise ValueError(f"{given} needs {lacking} beside it; or use engines, which do both")
        if self.engines is None and self.prefill is None:
            raise ValueError("no engines asked for; give engines.replicas, or prefill.replicas and decode.replicas")
        return self


class GpuPool(Strict):
    """Hardware that a set of models shares."""

    api_version: Literal["serving.aegaeon.io/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["GpuPool"] = Field(description="GpuPool.")
    metadata: Metadata = Field(description="Name of the pool.")
    spec: GpuPoolSpec = Field(description="What the platform team wants.")


# ---- ModelPool -----------------------------------------------------------------------------------------------------


class HuggingFace(Strict):
    """A model on the Hugging Face hub."""

    repository: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="For example Qwen/Qwen3-0.6B.")
    revision: Annotated[str, Field(max_length=200)] = Field(
        default="", description="Branch, tag or commit; empty means the default branch."
    )


CredentialsFile = Annotated[str, Field(max_length=4096, pattern=r"^(/.*)?$")]


class S3(Strict):
    """A prefix in an S3-compatible store."""

    bucket: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="Name of the bucket.")
    prefix: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="The folder in it that holds config.json and the safetensors files."
    )
    endpoint: Annotated[str, Field(max_length=2048, pattern=r"^(https?://.+)?$")] = Field(
        default="", description="URL of the store; left out: AWS."
    )
    credentials_file: CredentialsFile = Field(
        default="",
        description="An AWS credentials file on the machine, where a Secret is mounted, for example; its profile "
        "`default` is used. Left out: the environment, as for any AWS client.",
    )


class Http(Strict):
    """A folder on a web server, with SHA256SUMS to check its files against, if it has them."""

    url: Annotated[str, Field(max_length=2048, pattern=r"^https?://.+$")] = Field(description="URL of the folder.")
    credentials_file: CredentialsFile = Field(
        default="",
        description="A file on the machine, where a Secret is mounted, for example, that holds a bearer token. "
        "Left out: none is sent.",
    )


class Source(Strict):
    """Where a model's config.json and safetensors files are. Exactly one of the fields."""

    model_config = rules(
        (
            "[has(self.hostPath), has(self.huggingFace), has(self.s3), has(self.http)].exists_one(x, x)",
            "give exactly one of hostPath, huggingFace, s3, http",
        ),
    )

    host_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None,
        description="Folder on the machine. An absolute path or `~/...` is taken as it is; `./...` and `../...` "
        "start at the manifest's own folder; anything else is inside the models folder (`aegaeon up --models`).",
    )
    hugging_face: HuggingFace | None = Field(default=None, description="A model on the Hugging Face hub.")
    s3: S3 | None = Field(default=None, description="A model in an S3-compatible store.")
    http: Http | None = Field(default=None, description="A model on a web server.")

    @property
    def needs_disk(self) -> bool:
        """Whether it is kept in the pool's disk tier."""
        return self.s3 is not None or self.http is not None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [self.host_path, self.hugging_face, self.s3, self.http]
        if sum(source is not None for source in given) != 1:
            raise ValueError("give exactly one of hostPath, huggingFace, s3, http")
        return self


class Slo(Strict):
    """Service-level objective: output token k is on time at arrival + ttft + k * tbt."""

    ttft: PositiveDuration = Field(default=10.0, description="Time to the first token.")
    tbt: PositiveDuration = Field(default=0.1, description="Time between tokens after it.")


class Quota(Strict):
    """What may be asked in a minute; a field left out is without end."""

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(default=None, description="Requests.")
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None, description="Tokens of prompts and outputs together."
    )


class Tenant(Strict):
    """A client team: its keys, the models that it may use, how much it may ask for."""

    name: ObjectName = Field(description="Name of the tenant; in metrics and messages.")
    key_file: Annotated[str, Field(min_length=1, max_length=4096)] = Field(
        description="File of its API keys, one a line (two during a rotation); read again when it changes. `./...` "
        "and `../...` start at the manifest's own folder.",
    )
    models: Annotated[tuple[ServedName, ...], Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="Models of this ModelPool that it may use; left out: all of them."
    )
    quota: Quota = Field(default=Quota(), description="How much it may ask for, over all its models.")


class ServedModel(Strict):
    """One model of the pool."""

    name: ServedName = Field(description="Name that clients give in `model`; unique in the GpuPool.")
    source: Source = Field(description="Where its files are.", json_schema_extra=_SAME_FILES)
    max_model_len: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Longest prompt and output together, in tokens; left out: what its config.json says."
    )
    slo: Slo = Field(default=Slo(), description="Its service-level objective.")
    tier: Literal["interactive", "standard", "batch"] = Field(
        default="standard",
        description="Who comes late first when the engines cannot serve all in time: `batch`, then `standard`, then "
        "`interactive` (policy `aegaeon`).",
    )
    weight: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1,
        description="Share of the engines' time among models of the same tier when not all can be served in time: a "
        "model of weight 2 gets twice that of one of weight 1 (policy `aegaeon`).",
    )
    quota: Quota = Field(default=Quota(), description="How much all clients together may ask of it.")


class ObjectRef(Strict):
    """A reference to another object of the same namespace."""

    name: ObjectName = Field(description="Name of the object.")


class LocalGateway(Strict):
    """How the models are reached."""

    port: Annotated[int, Field(ge=1, le=65535)] = Field(default=8000, description="Port of the OpenAI API.")


class ModelPoolSpec(Strict):
    """Models, their objectives, and how they are reached."""

    gpu_pool_ref: ObjectRef = Field(description="The GpuPool that serves these models.", json_schema_extra=_UNCHANGED)
    models: Annotated[tuple[ServedModel, ...], Field(min_length=1, max_length=512)] = Field(
        description="The models.", json_schema_extra=list_map("name")
    )
    tenants: Annotated[tuple[Tenant, ...], Field(max_length=256)] = Field(
        default=(),
        description="Who may use the models; left out: everybody, without a key.",
        json_schema_extra=list_map("name"),
    )
    gateway: LocalGateway = Field(default=LocalGateway(), description="How the models are reached.")


class ModelPool(Strict):
    """Models that a tenant team serves from a GpuPool."""

    api_version: Literal["serving.aegaeon.io/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["ModelPool"] = Field(description="ModelPool.")
    metadata: Metadata = Field(description="Name of the pool.")
    spec: ModelPoolSpec = Field(description="What the tenant team wants.")
