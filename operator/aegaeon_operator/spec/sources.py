"""Where the files of models and adapters are, as a tenant team writes it."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from aegaeon_operator.spec.base import SecretRef, Strict
from aegaeon_operator.spec.cel import field_rules, rules
from aegaeon_operator.spec.one_of import OneOf
from aegaeon_proto.outbound.errors import RefusedError
from aegaeon_proto.outbound.urls import OPTIONAL_SOURCE_PATTERN, SOURCE_PATTERN, check_source

# A path of a pod would name what others own there, so only `aegaeon up`, which does not ask an API server, takes one.
_SECRETS_ALONE = field_rules(("size(self) == 0", "is for `aegaeon up`; on Kubernetes give credentialsSecretRef"))
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


_KINDS = OneOf("host_path", "hugging_face", "s3", "http")


class Source(Strict):
    """Where a model's config.json and safetensors files are. Exactly one of the fields."""

    model_config = rules(_KINDS.rule)

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
        return _KINDS.check(self)


class AdapterSource(Source):
    """Where an adapter's adapter_config.json and adapter_model.safetensors are. Exactly one of the fields."""

    # Held against the folder of models in the status alone: a rule for each would cost the API server too much.
    host_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None, description="Folder on the machine, as that of a model."
    )
