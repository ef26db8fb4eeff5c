"""ModelPool, as a tenant team writes it: models, where their files are, objectives, who may use them.

Descriptions are what `kubectl explain` prints; units live in the types (Quantity, Duration).
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

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
from aegaeon_proto.outbound.errors import RefusedError
from aegaeon_proto.outbound.urls import OPTIONAL_SOURCE_PATTERN, SOURCE_PATTERN, check_source

# A path of a pod would name what others own there, so only `aegaeon up`, which does not ask an API server, takes one.
_SECRETS_ALONE = field_rules(("size(self) == 0", "is for `aegaeon up`; on Kubernetes give credentialsSecretRef"))
_KEYS_ALONE = field_rules(("size(self) == 0", "is for `aegaeon up`; on Kubernetes give keySecretRef"))
_INSIDE = field_rules(
    (
        "!self.matches('(^|/)[.][.](/|$)') && !self.startsWith('~')",
        "on Kubernetes must be a folder inside the GpuPool's volumes.models.path, without `..` or `~`",
    )
)
CredentialsFile = Annotated[str, Field(max_length=4096, pattern=r"^(/.*)?$", json_schema_extra=_SECRETS_ALONE)]


def _address(value: str) -> str:
    """What a pattern cannot say of a URL: ports and IPv6 addresses that are none."""
    try:
        return check_source(value) if value else value
    except RefusedError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
Revision = Annotated[str, Field(max_length=200, pattern=r"^[!-~]*$")]
Folder = Annotated[str, Field(max_length=2048, pattern=SOURCE_PATTERN), AfterValidator(_address)]
Endpoint = Annotated[str, Field(max_length=2048, pattern=OPTIONAL_SOURCE_PATTERN), AfterValidator(_address)]


class Guarded(Strict):
    """A source that may want credentials."""

    model_config = rules(
        (
            "!(has(self.credentialsSecretRef) && has(self.credentialsFile) && size(self.credentialsFile) > 0)",
            "give credentialsFile or credentialsSecretRef, not both",
        ),
    )

    credentials_file: CredentialsFile = Field(default="", description="A file on the machine that holds them.")
    credentials_secret_ref: SecretRef | None = Field(
        default=None, description="On Kubernetes: what the file would hold, as an entry of a Secret beside it."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.credentials_file and self.credentials_secret_ref:
            raise ValueError("give credentialsFile or credentialsSecretRef, not both")
        return self


class HuggingFace(Guarded):
    """A model on the Hugging Face hub."""

    repository: Name = Field(description="For example Qwen/Qwen3-0.6B.")
    revision: Revision = Field(default="", description="Branch, tag or commit; empty means the default branch.")
    credentials_file: CredentialsFile = Field(
        default="",
        description="A file on the machine that holds an access token, for models that want one. Left out: on "
        "Kubernetes none is sent, with `aegaeon up` the environment's, as for any client of the hub.",
    )


class S3(Guarded):
    """A prefix in an S3-compatible store."""

    bucket: Name = Field(description="Name of the bucket.")
    prefix: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="The folder in it that holds config.json and the safetensors files."
    )
    endpoint: Endpoint = Field(default="", description="URL of the store; left out: AWS.")
    credentials_file: CredentialsFile = Field(
        default="",
        description="An AWS credentials file on the machine, where a Secret is mounted, for example; its profile "
        "`default` is used. Left out: on Kubernetes requests are anonymous, with `aegaeon up` the environment counts, "
        "as for any AWS client.",
    )


class Http(Guarded):
    """A folder on a web server, with SHA256SUMS to check its files against, if it has them."""

    url: Folder = Field(
        description="URL of the folder, in ASCII (xn-- for hosts, percent-encoded paths), without user and query."
    )
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
        json_schema_extra=_INSIDE,
        description="Folder on the machine. An absolute path or `~/...` is taken as it is; `./...` and `../...` "
        "start at the manifest's own folder; anything else is inside the models folder (`aegaeon up --models`). On "
        "Kubernetes: a folder inside the GpuPool's volumes.models.path.",
    )
    hugging_face: HuggingFace | None = Field(default=None, description="A model on the Hugging Face hub.")
    s3: S3 | None = Field(default=None, description="A model in an S3-compatible store.")
    http: Http | None = Field(default=None, description="A model on a web server.")

    @property
    def guarded(self) -> Guarded | None:
        """The source, where it may want credentials."""
        return self.hugging_face or self.s3 or self.http

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


Granted = Annotated[str, Field(min_length=1, max_length=200)]  # checked against the models themselves


class Tenant(Strict):
    """A client team: its keys, the models that it may use, how much it may ask for."""

    model_config = rules(
        ("has(self.keyFile) != has(self.keySecretRef)", "give exactly one of keyFile, keySecretRef"),
    )

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
        default=None, description="Models of this ModelPool that it may use; left out: all of them."
    )
    quota: Quota = Field(default=Quota(), description="How much it may ask for, over all its models.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.key_file is None) == (self.key_secret_ref is None):
            raise ValueError("give exactly one of keyFile, keySecretRef")
        return self


class ServedModel(Strict):
    """One model of the pool."""

    name: ServedName = Field(description="Name that clients give in `model`; unique in the GpuPool.")
    source: Source = Field(description="Where its files are. Another one is prepared beside it, then takes its name.")
    max_model_len: Annotated[int, Field(ge=1, le=10_000_000)] | None = Field(
        default=None, description="Longest prompt and output together, in tokens; left out: what its config.json says."
    )
    slo: Slo = Field(default=Slo(), description="Its service-level objective.")
    tier: Literal["interactive", "standard", "batch"] = Field(
        default="standard",
        description="Who comes late first when the engines cannot serve all in time: `batch`, then `standard`, then "
        "`interactive` (policy `slack`).",
    )
    weight: Annotated[int, Field(ge=1, le=100)] = Field(
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
    quota: Quota = Field(default=Quota(), description="How much all clients together may ask of it.")


class PoolRef(Strict):
    """A reference to a GpuPool."""

    name: ObjectName = Field(description="Name of the GpuPool.")
    namespace: ObjectName | None = Field(
        default=None,
        description="Its namespace; left out: the ModelPool's own. Another one must be in its allowedNamespaces.",
    )


class ModelPoolSpec(Strict):
    """Models, their objectives, and how they are reached."""

    gpu_pool_ref: PoolRef = Field(description="The GpuPool that serves these models.", json_schema_extra=UNCHANGED)
    models: Annotated[tuple[ServedModel, ...], Field(min_length=1, max_length=512)] = Field(
        description="The models.", json_schema_extra=list_map("name")
    )
    tenants: Annotated[tuple[Tenant, ...], Field(max_length=256)] = Field(
        default=(),
        description="Tenants that may use the models; left out: every client, without a key.",
        json_schema_extra=list_map("name"),
    )
    gateway: Access = Field(default=Access(), description="How the models are reached.")


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
