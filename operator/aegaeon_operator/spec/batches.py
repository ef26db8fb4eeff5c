"""Where files and batches of clients are kept. Descriptions are what `kubectl explain` prints."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import DNS_LABEL, PATH, DottedName, PositiveDuration, PositiveQuantity, Strict
from aegaeon_operator.spec.cel import field_rules, rules
from aegaeon_operator.spec.one_of import OneOf
from aegaeon_operator.spec.sources import Endpoint, Guarded, Name

_STORES = OneOf("folder", "claim", "s3")
_LOCAL = field_rules(("self == ''", "is for `aegaeon up`; on Kubernetes give claim or s3"))


class BatchBucket(Guarded):
    """A prefix in an S3-compatible store that knows conditional writes (If-None-Match)."""

    bucket: Name = Field(description="Name of the bucket.")
    prefix: Annotated[str, Field(max_length=1024)] = Field(default="", description="The folder in it.")
    endpoint: Endpoint = Field(default="", description="URL of the store; left out: AWS.")
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=DNS_LABEL)] = Field(
        default="us-east-1", description="Region of the bucket."
    )


class BatchStore(Strict):
    """Where files and batches are kept, and how much of them. Exactly one of folder, claim and s3."""

    model_config = rules(_STORES.rule)

    folder: Annotated[str, Field(min_length=1, max_length=4096, pattern=PATH)] | None = Field(
        default=None, json_schema_extra=_LOCAL, description="With `aegaeon up`: a folder of the machine."
    )
    claim: DottedName | None = Field(
        default=None,
        description="On Kubernetes: a PersistentVolumeClaim that all gateways mount, so ReadWriteMany for several.",
    )
    s3: BatchBucket | None = Field(default=None, description="An S3-compatible store.")
    keep: PositiveDuration = Field(
        default=30 * 86400.0, description="How long files are kept, and batches after their window."
    )
    tenant_size: PositiveQuantity = Field(default=10 << 30, description="Most that the files of a tenant may take.")
    in_flight: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=32,
        description="Requests of batches that one gateway has open at a time at most; fewer while online traffic "
        "needs engines.",
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        return _STORES.check(self)
