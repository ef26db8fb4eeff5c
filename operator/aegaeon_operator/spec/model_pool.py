"""ModelPool, the kind of a tenant team: models, their files and objectives, and the tenants that may use them.

`kubectl explain` prints the descriptions; units are in the types (Quantity, Duration).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import (
    UNCHANGED,
    Metadata,
    ObjectName,
    PositiveDuration,
    SecretRef,
    ServedName,
    Strict,
)
from aegaeon_operator.spec.cel import field_rules, list_map, rules
from aegaeon_operator.spec.exclusive_fields import ExclusiveFields
from aegaeon_operator.spec.kubernetes import Access
from aegaeon_operator.spec.sources import AdapterSource, Source

# On Kubernetes a path could name another team's files in the pod, so only `aegaeon up` accepts it.
_LOCAL = field_rules(("size(self) == 0", "is for `aegaeon up` only; on Kubernetes set keySecretRef"))


class Adapter(Strict):
    """A low-rank adapter (LoRA) of a model, with a name of its own."""

    name: ServedName = Field(description="Name for the field `model` of requests; unique in the GpuPool.")
    source: AdapterSource = Field(description="Location of its files. After a change new requests use the new files.")


class Slo(Strict):
    """Service-level objective: output token k is on time at arrival + ttft + k * tbt."""

    ttft: PositiveDuration = Field(default=10.0, description="Time to the first token.")
    tbt: PositiveDuration = Field(default=0.1, description="Time between tokens after it.")


class Quota(Strict):
    """Limits for a minute; a field that is not set does not limit."""

    requests_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="Maximum requests."
    )
    tokens_per_minute: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = Field(
        default=None, description="Maximum tokens of prompts and outputs together."
    )


_MOST_NAMES = 512
Granted = Annotated[str, Field(min_length=1, max_length=200)]  # checked against the models themselves


_KEYS = ExclusiveFields("key_file", "key_secret_ref")
Tier = Literal["interactive", "standard", "batch"]
Weight = Annotated[int, Field(ge=1, le=100)]


class Tenant(Strict):
    """A client team: its API keys, models and limits."""

    model_config = rules(_KEYS.rule)

    name: ObjectName = Field(description="Name of the tenant in metrics and messages.")
    key_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None,
        json_schema_extra=_LOCAL,
        description="File with its API keys, one per line (two during a rotation); read again when it changes. `./...` "
        "and `../...` are relative to the manifest's folder.",
    )
    key_secret_ref: SecretRef | None = Field(
        default=None,
        description="On Kubernetes: entry of a Secret in the ModelPool's namespace with its API keys, one per line "
        "(two during a rotation); read again when it changes.",
    )
    models: Annotated[tuple[Granted, ...], Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="Models and adapters of this ModelPool that it may use; default: all."
    )
    quota: Quota = Field(default=Quota(), description="Its limits over all models.")
    tier: Tier | None = Field(
        default=None,
        description="Order of degradation among tenants of a model when not all requests can meet its objective: "
        "`batch` misses it first, then `standard`, then `interactive`; default: standard. A request may have a lower "
        "tier by its `service_tier` (policy `slack`).",
    )
    weight: Weight | None = Field(
        default=None,
        description="Share of a model's time among tenants of the same tier when not all requests can meet its "
        "objective: a tenant of weight 2 gets twice the time of a tenant of weight 1; default: 1 (policy `slack`).",
    )
    strict: bool = Field(
        default=False,
        description="Refuse its requests with parameters that have no effect, instead of answering them with a header "
        "that lists these parameters.",
    )

    _exactly_one = _KEYS.validator


class ServedModel(Strict):
    """One model of the pool."""

    name: ServedName = Field(description="Name for the field `model` of requests; unique in the GpuPool.")
    source: Source = Field(
        description="Location of its files. After a change the old files are served until the new ones are ready."
    )
    max_model_len: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Maximum tokens of prompt and output together; default: the value in its config.json."
    )
    slo: Slo = Field(default=Slo(), description="Its service-level objective.")
    tier: Tier = Field(
        default="standard",
        description="Order of degradation when the engines cannot meet all objectives: `batch` misses its objective "
        "first, then `standard`, then `interactive` (policy `slack`).",
    )
    weight: Weight = Field(
        default=1,
        description="Share of engine time among models of the same tier when the engines cannot meet all objectives: a "
        "model of weight 2 gets twice the time of a model of weight 1 (policy `slack`).",
    )
    tool_calls: Literal["hermes", "llama3", "mistral", "deepseek", "harmony", "none"] | None = Field(
        default=None, description="Format of its tool calls; default: detected from its chat template."
    )
    reasoning: Literal["think", "mistral", "seed", "kimi", "harmony", "none"] | None = Field(
        default=None, description="Format of its reasoning; default: detected from its chat template."
    )
    task: Literal["generate", "embed", "score"] | None = Field(
        default=None,
        description="`generate` text, `embed` texts, or `score` documents for a query. Default: detected from its "
        "files (`modules.json` of sentence-transformers, a classifier's architecture). After a change the old task is "
        "served until the new one is ready.",
    )
    matryoshka: bool = Field(
        default=False,
        description="Allow requests with fewer `dimensions` for its embeddings even if its config.json does not "
        "declare it.",
    )
    public_prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=32768)], ...], Field(max_length=8)
    ] = Field(
        default=(),
        description="System prompts that are not secret: all clients share the KV cache of such a prefix, regardless "
        "of memory.prefixScope.",
    )
    quota: Quota = Field(default=Quota(), description="Its limits for all clients together.")
    adapters: Annotated[tuple[Adapter, ...], Field(max_length=32)] = Field(
        default=(),
        description="Adapters served with its weights, objective and limits; the GpuPool needs `adapters`. They are "
        "loaded on the device on demand.",
        json_schema_extra=list_map("name"),
    )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the model and its adapters."""
        return self.name, *(adapter.name for adapter in self.adapters)


class PoolRef(Strict):
    """A reference to a GpuPool."""

    name: ObjectName = Field(description="Name of the GpuPool.")
    namespace: ObjectName | None = Field(
        default=None,
        description="Namespace of the GpuPool; default: the ModelPool's. The GpuPool's allowedNamespaces must include "
        "the ModelPool's namespace if the two differ.",
    )


class ModelPoolSpec(Strict):
    """Models, their objectives and access to them."""

    model_config = rules(
        (
            f"size(self.models) + self.models.map(m, size(m.adapters)).sum() <= {_MOST_NAMES}",
            f"models and adapters together must be at most {_MOST_NAMES}; move some to a second ModelPool",
        ),
    )

    gpu_pool_ref: PoolRef = Field(description="The GpuPool that serves these models.", json_schema_extra=UNCHANGED)
    models: Annotated[tuple[ServedModel, ...], Field(min_length=1, max_length=512)] = Field(
        description="The models.", json_schema_extra=list_map("name")
    )
    tenants: Annotated[tuple[Tenant, ...], Field(max_length=256)] = Field(
        default=(),
        description="Tenants that may use the models; default: every client, without a key.",
        json_schema_extra=list_map("name"),
    )
    share_prefix: ObjectName | None = Field(
        default=None,
        description="Name of a group of ModelPools in this namespace whose tenants trust each other: their prompts "
        "share KV cache as if all were of one tenant. Default: only prompts of the same tenant share it.",
    )
    gateway: Access = Field(default=Access(), description="Access to the models.")

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if (count := sum(len(model.names) for model in self.models)) > _MOST_NAMES:
            raise ValueError(f"models and adapters together are {count}; a ModelPool may have at most {_MOST_NAMES}")
        return self


class ModelPool(Strict):
    """Models that a tenant team serves from a GpuPool."""

    model_config = rules(
        (
            "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
            "metadata.name must be at most 63 lower-case letters, digits and '-'",
        ),
    )

    api_version: Literal["serving.aegaeon.io/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["ModelPool"] = Field(description="ModelPool.")
    metadata: Metadata = Field(description="Name of the pool.")
    spec: ModelPoolSpec = Field(description="Desired state, written by the tenant team.")

    @property
    def pool(self) -> tuple[str, str]:
        """The namespace and name of its GpuPool."""
        ref = self.spec.gpu_pool_ref
        return ref.namespace or self.metadata.namespace, ref.name

    @property
    def prefix_share(self) -> str:
        """Its group, with its namespace: a group of the same name in another namespace is a different one."""
        return f"{self.metadata.namespace}/{self.spec.share_prefix}" if self.spec.share_prefix else ""
