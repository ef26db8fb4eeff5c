"""Storage of clients' files and batches. `kubectl explain` prints the descriptions."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aegaeon_operator.spec.base import DNS_LABEL, PATH, DottedName, PositiveDuration, PositiveQuantity, Strict
from aegaeon_operator.spec.cel import field_rules, rules
from aegaeon_operator.spec.exclusive_fields import ExclusiveFields
from aegaeon_operator.spec.sources import Endpoint, Guarded, Name

_STORES = ExclusiveFields("folder", "claim", "s3")
_LOCAL = field_rules(("self == ''", "is for `aegaeon up` only; on Kubernetes set claim or s3"))


class BatchBucket(Guarded):
    """A prefix in an S3-compatible store that supports conditional writes (If-None-Match)."""

    bucket: Name = Field(description="Name of the bucket.")
    prefix: Annotated[str, Field(max_length=1024)] = Field(default="", description="Prefix of the objects' keys.")
    endpoint: Endpoint = Field(default="", description="URL of the store; default: AWS.")
    region: Annotated[str, Field(min_length=1, max_length=64, pattern=DNS_LABEL)] = Field(
        default="us-east-1", description="Region of the bucket."
    )


class BatchStore(Strict):
    """Storage of files and batches, and its limits. Set exactly one of folder, claim and s3."""

    model_config = rules(_STORES.rule)

    folder: Annotated[str, Field(min_length=1, max_length=4096, pattern=PATH)] | None = Field(
        default=None, json_schema_extra=_LOCAL, description="With `aegaeon up`: a folder on the machine."
    )
    claim: DottedName | None = Field(
        default=None,
        description="On Kubernetes: a PersistentVolumeClaim that all gateways mount; several gateways need access mode "
        "ReadWriteMany.",
    )
    s3: BatchBucket | None = Field(default=None, description="An S3-compatible store.")
    keep: PositiveDuration = Field(
        default=30 * 86400.0, description="Retention of files, and of batches after the end of their window."
    )
    tenant_size: PositiveQuantity = Field(default=10 << 30, description="Maximum total size of a tenant's files.")
    in_flight: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=32,
        description="Maximum number of batch requests that one gateway has open at a time; it opens fewer while online "
        "traffic needs the engines.",
    )

    _exactly_one = _STORES.validator
