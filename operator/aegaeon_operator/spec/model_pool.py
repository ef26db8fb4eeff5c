"""ModelPool, as a tenant team writes it: models, where their files are, objectives, who may use them.

Descriptions are what `kubectl explain` prints; units live in the types (Quantity, Duration).
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
from aegaeon_operator.spec.kubernetes import Access
from aegaeon_operator.spec.one_of import OneOf
from aegaeon_operator.spec.sources import AdapterSource, Source

# A path of a pod would name what others own there, so only `aegaeon up`, which does not ask an API server, takes one.
_KEYS_ALONE = field_rules(("size(self) == 0", "is for `aegaeon up`; on Kubernetes give keySecretRef"))


class Adapter(Strict):
    """A low-rank adapter (LoRA) of a model, served under a name of its own."""

    name: ServedName = Field(description="Name that clients give in `model`; unique in the GpuPool.")
    source: AdapterSource = Field(description="Where its files are; new requests are served with those of another one.")


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


_MOST_NAMES = 512
Granted = Annotated[str, Field(min_length=1, max_length=200)]  # checked against the models themselves


Tier = Literal["interactive", "standard", "batch"]
Weight = Annotated[int, Field(ge=1, le=100)]
_KEYS = OneOf("key_file", "key_secret_ref")


class Tenant(Strict):
    """A client team: its keys, the models that it may use, how much it may ask for."""

    model_config = rules(_KEYS.rule)

    name: ObjectName = Field(description="Name of the tenant; in metrics and messages.")
    key_file: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None,
        json_schema_extra=_KEYS_ALONE,
        description="File of its API keys, one a line (two during a rotation); read again when it changes. `./...` "
        "and `../...` start at the manifest's own folder.",
    )
    key_secret_ref: SecretRef | None = Field(
        default=None,
        description="On Kubernetes: its API keys, one a line (two during a rotation), as an entry of a Secret beside "
        "the ModelPool; read again when it changes.",
    )
    models: Annotated[tuple[Granted, ...], Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="Models and adapters of this ModelPool that it may use; left out: all of them."
    )
    quota: Quota = Field(default=Quota(), description="How much it may ask for, over all its models.")
    tier: Tier = Field(
        default="standard",
        description="Whose requests for a model of this ModelPool come late first when not all can be served in time: "
        "those of tenants of `batch`, then `standard`, then `interactive`; a request may ask for a lower tier by "
        "`service_tier` (policy `slack`).",
    )
    weight: Weight = Field(
        default=1,
        description="Share of a model's time among tenants of the same tier when not all can be served in time: a "
        "tenant of weight 2 gets twice that of one of weight 1 (policy `slack`).",
    )
    strict: bool = Field(
        default=False,
        description="Its requests are refused where they name what has no effect, instead of answered with a header "
        "that says it.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return _KEYS.check(self)


class ServedModel(Strict):
    """One model of the pool."""

    name: ServedName = Field(description="Name that clients give in `model`; unique in the GpuPool.")
    source: Source = Field(description="Where its files are. Another one is prepared beside it, then takes its name.")
    max_model_len: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Longest prompt and output together, in tokens; left out: what its config.json says."
    )
    slo: Slo = Field(default=Slo(), description="Its service-level objective.")
    tier: Tier = Field(
        default="standard",
        description="Who comes late first when the engines cannot serve all in time: `batch`, then `standard`, then "
        "`interactive` (policy `slack`).",
    )
    weight: Weight = Field(
        default=1,
        description="Share of the engines' time among models of the same tier when not all can be served in time: a "
        "model of weight 2 gets twice that of one of weight 1 (policy `slack`).",
    )
    tool_calls: Literal["hermes", "llama3", "mistral", "deepseek", "harmony", "none"] | None = Field(
        default=None, description="How it writes calls of tools; left out: what its chat template shows."
    )
    reasoning: Literal["think", "mistral", "seed", "kimi", "harmony", "none"] | None = Field(
        default=None, description="How it marks its reasoning; left out: what its chat template shows."
    )
    task: Literal["generate", "embed", "score"] | None = Field(
        default=None,
        description="What it is for: to generate text, to embed texts, or to score documents for a query; left out: "
        "what its files show (`modules.json` of sentence-transformers, a classifier's architecture). Another one is "
        "prepared beside it, then takes its name.",
    )
    matryoshka: bool = Field(
        default=False,
        description="Its embeddings may be cut to fewer `dimensions`, though its config.json does not say so.",
    )
    public_prompts: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=32768)], ...], Field(max_length=8)
    ] = Field(
        default=(),
        description="System prompts that are no secret: KV cache of a prompt that begins with one is shared by all up "
        "to its end, whatever memory.prefixScope says.",
    )
    quota: Quota = Field(default=Quota(), description="How much all clients together may ask of it.")
    adapters: Annotated[tuple[Adapter, ...], Field(max_length=32)] = Field(
        default=(),
        description="Adapters that are served with its weights, with its objective and limits; the GpuPool needs "
        "`adapters`. Which of them are on the device changes with what is asked.",
        json_schema_extra=list_map("name"),
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Its own and its adapters'."""
        return self.name, *(adapter.name for adapter in self.adapters)


class PoolRef(Strict):
    """A reference to a GpuPool."""

    name: ObjectName = Field(description="Name of the GpuPool.")
    namespace: ObjectName | None = Field(
        default=None,
        description="Its namespace; left out: the ModelPool's own. Another one must be in its allowedNamespaces.",
    )


class ModelPoolSpec(Strict):
    """Models, their objectives, and how they are reached."""

    model_config = rules(
        (
            f"size(self.models) + self.models.map(m, size(m.adapters)).sum() <= {_MOST_NAMES}",
            f"models and adapters together must be {_MOST_NAMES} at most; make a second ModelPool of the rest",
        ),
    )

    gpu_pool_ref: PoolRef = Field(description="The GpuPool that serves these models.", json_schema_extra=UNCHANGED)
    models: Annotated[tuple[ServedModel, ...], Field(min_length=1, max_length=512)] = Field(
        description="The models.", json_schema_extra=list_map("name")
    )
    tenants: Annotated[tuple[Tenant, ...], Field(max_length=256)] = Field(
        default=(),
        description="Tenants that may use the models; left out: every client, without a key.",
        json_schema_extra=list_map("name"),
    )
    share_prefix: ObjectName | None = Field(
        default=None,
        description="A group of ModelPools of this namespace whose tenants trust each other: what is asked of their "
        "models shares KV cache, as if it were of one tenant. Left out: each tenant's requests share their own.",
    )
    gateway: Access = Field(default=Access(), description="How the models are reached.")

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if (count := sum(len(model.names) for model in self.models)) > _MOST_NAMES:
            raise ValueError(f"models and adapters together are {count}; {_MOST_NAMES} are the most of a ModelPool")
        return self


class ModelPool(Strict):
    """Models that a tenant team serves from a GpuPool."""

    model_config = rules(
        (
            "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
            "metadata.name must be at most 63 small letters, digits and dashes",
        ),
    )

    api_version: Literal["serving.aegaeon.io/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["ModelPool"] = Field(description="ModelPool.")
    metadata: Metadata = Field(description="Name of the pool.")
    spec: ModelPoolSpec = Field(description="What the tenant team wants.")

    @property
    def pool(self) -> tuple[str, str]:
        """Namespace and name of the GpuPool that it refers to."""
        ref = self.spec.gpu_pool_ref
        return ref.namespace or self.metadata.namespace, ref.name

    @property
    def prefix_share(self) -> str:
        """Its group, whose name counts within its namespace alone: who guesses one elsewhere is not in it."""
        return f"{self.metadata.namespace}/{self.spec.share_prefix}" if self.spec.share_prefix else ""
