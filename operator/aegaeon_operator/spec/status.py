"""What the operator says of an object: `status` of both kinds.

Conditions are those of Kubernetes (metav1.Condition); `kubectl wait --for=condition=Ready` reads them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aegaeon_operator.spec.cel import list_map
from aegaeon_operator.spec.resources import Strict

_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class Condition(Strict):
    """One aspect of the object's state."""

    type: Annotated[str, Field(min_length=1, max_length=316)] = Field(description="The aspect, for example Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: Annotated[int, Field(ge=0)] = Field(description="Generation of the spec that this is about.")
    last_transition_time: Annotated[str, Field(max_length=64)] = Field(
        description="When the status last changed (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=_REASON)] = Field(
        description="Why, as one CamelCase word for programs."
    )
    message: Annotated[str, Field(max_length=32768)] = Field(description="Why, for people.")


_CONDITIONS = Field(default=(), max_length=16, description="Aspects of its state.", json_schema_extra=list_map("type"))


class GpuPoolStatus(Strict):
    """What runs."""

    observed_generation: Annotated[int, Field(ge=0)] = Field(default=0, description="Generation last acted on.")
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    replicas: Annotated[int, Field(ge=0)] = Field(default=0, description="Engines (`spec.engines`) that exist.")
    selector: Annotated[str, Field(max_length=1024)] = Field(default="", description="Labels of those engines' pods.")


class ModelPoolStatus(Strict):
    """What is served."""

    observed_generation: Annotated[int, Field(ge=0)] = Field(default=0, description="Generation last acted on.")
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
