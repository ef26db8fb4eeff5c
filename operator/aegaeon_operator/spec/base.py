"""Building blocks of both kinds: a strict base type, names, and references to other objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from aegaeon_operator.spec.cel import field_rules
from aegaeon_operator.spec.quantity import DURATION, Duration, Quantity

GROUP = "serving.aegaeon.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = rf"^{DNS_LABEL[1:-1]}(\.{DNS_LABEL[1:-1]})*$"
SERVED_NAME = r"^[A-Za-z0-9]([A-Za-z0-9._/:@-]*[A-Za-z0-9])?$"
PATH = r"^/[-A-Za-z0-9._~/]*[-A-Za-z0-9._~]$"
SECRET_KEY = r"^[-._a-zA-Z0-9]+$"

# A value that is no duration, or no quantity, breaks the rule that replaces its pattern; these rules then hold.
_LONGER_THAN_0 = field_rules(
    (f'!self.matches(r"{DURATION}") || duration(self) > duration("0s")', "must be longer than 0s")
)
_MORE_THAN_0 = field_rules(
    ("!isQuantity(string(self)) || quantity(string(self)).compareTo(quantity('0')) != 0", "must be more than 0")
)
UNCHANGED = field_rules(("self == oldSelf", "is immutable; delete the object and create it again"))

PositiveQuantity = Annotated[Quantity, Field(gt=0, json_schema_extra=_MORE_THAN_0)]
PositiveDuration = Annotated[Duration, Field(gt=0, json_schema_extra=_LONGER_THAN_0)]
ObjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
# Names of Secrets and other kinds, which may have dots.
DottedName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
ServedName = Annotated[str, Field(min_length=1, max_length=200, pattern=SERVED_NAME)]


class Strict(BaseModel):
    """A frozen type, in camelCase outside, without unknown fields and without silent conversion of types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )

    def _refused(self, problems: Iterable[str]) -> Self:
        """Return the object, for a validator; raise ValueError with all problems at once."""
        if message := "; ".join(problems):
            raise ValueError(message)
        return self


class Metadata(Strict):
    """The part of Kubernetes' object metadata that Aegaeon uses."""

    name: ObjectName = Field(description="Name of the object, unique among its kind.")
    namespace: ObjectName = Field(default="default", description="Namespace of the object.")
    labels: dict[str, str] = Field(default={}, description="Labels of the object.")
    annotations: dict[str, str] = Field(default={}, description="Annotations of the object.")


class SecretRef(Strict):
    """An entry of a Secret in the object's own namespace."""

    name: DottedName = Field(description="Name of the Secret.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=SECRET_KEY)] = Field(
        description="Key of the entry."
    )


class ConfigMapRef(Strict):
    """An entry of a ConfigMap in the object's own namespace."""

    name: DottedName = Field(description="Name of the ConfigMap.")
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=SECRET_KEY)] = Field(
        description="Key of the entry."
    )
