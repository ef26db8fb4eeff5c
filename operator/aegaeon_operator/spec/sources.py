"""Sources of the files of models and adapters."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from aegaeon_operator.spec.base import SecretRef, Strict
from aegaeon_operator.spec.cel import field_rules, rules
from aegaeon_operator.spec.exclusive_fields import ExclusiveFields
from aegaeon_proto.outbound.errors import RefusedError
from aegaeon_proto.outbound.urls import OPTIONAL_SOURCE_PATTERN, SOURCE_PATTERN, check_source

# On Kubernetes a path could name another team's files in the pod, so only `aegaeon up` accepts it.
_LOCAL = field_rules(("size(self) == 0", "is for `aegaeon up` only; on Kubernetes set credentialsSecretRef"))
_INSIDE = field_rules(
    (
        "!self.matches('(^|/)[.][.](/|$)') && !self.startsWith('~')",
        "must be a folder inside the GpuPool's volumes.models.path on Kubernetes, without `..` or `~`",
    )
)
CredentialsFile = Annotated[str, Field(max_length=4096, pattern=r"^(/.*)?$", json_schema_extra=_LOCAL)]


def _address(value: str) -> str:
    """Check a URL beyond its pattern: ports and IPv6 addresses. Raises ValueError."""
    try:
        return check_source(value) if value else value
    except RefusedError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
Revision = Annotated[str, Field(max_length=200, pattern=r"^[!-~]*$")]
Folder = Annotated[str, Field(max_length=2048, pattern=SOURCE_PATTERN), AfterValidator(_address)]
Endpoint = Annotated[str, Field(max_length=2048, pattern=OPTIONAL_SOURCE_PATTERN), AfterValidator(_address)]


class Guarded(Strict):
    """A source that may need credentials."""

    model_config = rules(
        (
            "!(has(self.credentialsSecretRef) && has(self.credentialsFile) && size(self.credentialsFile) > 0)",
            "set credentialsFile or credentialsSecretRef, not both",
        ),
    )

    credentials_file: CredentialsFile = Field(default="", description="With `aegaeon up`: file with the credentials.")
    credentials_secret_ref: SecretRef | None = Field(
        default=None,
        description="On Kubernetes: entry of a Secret in the object's namespace with the content of such a file.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.credentials_file and self.credentials_secret_ref:
            raise ValueError("set credentialsFile or credentialsSecretRef, not both")
        return self


class HuggingFace(Guarded):
    """A model on the Hugging Face hub."""

    repository: Name = Field(description="Name of the repository, for example Qwen/Qwen3-0.6B.")
    revision: Revision = Field(default="", description="Branch, tag or commit; default: the default branch.")
    credentials_file: CredentialsFile = Field(
        default="",
        description="With `aegaeon up`: file with an access token, for models that require it. Default: the token of "
        "the environment, as for any client of the hub; on Kubernetes none.",
    )


class S3(Guarded):
    """A prefix in an S3-compatible store."""

    bucket: Name = Field(description="Name of the bucket.")
    prefix: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="Prefix of the objects config.json and the safetensors files."
    )
    endpoint: Endpoint = Field(default="", description="URL of the store; default: AWS.")
    credentials_file: CredentialsFile = Field(
        default="",
        description="With `aegaeon up`: AWS credentials file, whose profile `default` is used. Default: the "
        "credentials of the environment, as for any AWS client; on Kubernetes requests are anonymous.",
    )


class Http(Guarded):
    """A folder on a web server; its files are checked against SHA256SUMS if the folder has it."""

    url: Folder = Field(
        description="URL of the folder in ASCII (xn-- for hosts, percent-encoded paths), without user and query."
    )
    credentials_file: CredentialsFile = Field(
        default="",
        description="With `aegaeon up`: file with a bearer token. Default: none is sent.",
    )


_KINDS = ExclusiveFields("host_path", "hugging_face", "s3", "http")


class Source(Strict):
    """Location of a model's config.json and safetensors files. Set exactly one of the fields."""

    model_config = rules(_KINDS.rule)

    host_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None,
        json_schema_extra=_INSIDE,
        description="Folder on the machine. `./...` and `../...` are relative to the manifest's folder, other paths, "
        "unless absolute or `~/...`, to the models folder (`aegaeon up --models`). On Kubernetes: a folder inside the "
        "GpuPool's volumes.models.path.",
    )
    hugging_face: HuggingFace | None = Field(default=None, description="A model on the Hugging Face hub.")
    s3: S3 | None = Field(default=None, description="A model in an S3-compatible store.")
    http: Http | None = Field(default=None, description="A model on a web server.")

    @property
    def guarded(self) -> Guarded | None:
        """The source, if it may need credentials."""
        return self.hugging_face or self.s3 or self.http

    @property
    def needs_disk(self) -> bool:
        """True if the files are kept in the pool's disk tier."""
        return self.s3 is not None or self.http is not None

    _exactly_one = _KINDS.validator


class AdapterSource(Source):
    """Location of an adapter's adapter_config.json and adapter_model.safetensors. Set exactly one of the fields."""

    # No rule: rules for every adapter exceed the API server's cost limit. The operator reports it in the status.
    host_path: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None, description="Folder on the machine, with the same rules as for a model."
    )
