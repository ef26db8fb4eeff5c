"""The number of engines of a role, set by the user or, between `min` and `max`, by the autoscaler."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import Strict
from aegaeon_operator.spec.cel import rules


class Replicas(Strict):
    """The number of engines of one role."""

    model_config = rules(
        ("has(self.min) == has(self.max)", "min and max must be set together; without them only replicas counts"),
        ("!has(self.min) || !has(self.max) || self.min <= self.max", "min must not be more than max"),
        (
            "!has(self.min) || !has(oldSelf.min) || self.replicas == oldSelf.replicas",
            "replicas cannot be changed while min and max are set, since the autoscaler sets the number of engines; "
            "change min or max, or remove both",
        ),
    )

    replicas: Annotated[int, Field(ge=0, le=1024)] = Field(
        description="Number of engines of this role; with min and max the initial number."
    )
    min: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        default=None,
        description="Minimum number of engines; idle engines above it are removed. With 0 the next request starts one.",
    )
    max: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Maximum number of engines; engines are added under load up to it."
    )

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if (self.min is None) != (self.max is None):
            raise ValueError("min and max must be set together; without them only replicas counts")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self
