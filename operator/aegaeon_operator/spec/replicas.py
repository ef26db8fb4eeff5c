"""How many engines of a role a GpuPool asks for, and who may change that."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from aegaeon_operator.spec.base import Strict
from aegaeon_operator.spec.cel import rules


class Replicas(Strict):
    """How many engines of one role."""

    model_config = rules(
        ("has(self.min) == has(self.max)", "min and max need each other; without them replicas alone counts"),
        ("!has(self.min) || !has(self.max) || self.min <= self.max", "min must not be more than max"),
        (
            "!has(self.min) || !has(oldSelf.min) || self.replicas == oldSelf.replicas",
            "with min and max the operator says how many run, and replicas is only where it began; change min or max, "
            "or take both away",
        ),
    )

    replicas: Annotated[int, Field(ge=0, le=1024)] = Field(
        description="Engines of this role; with min and max the number to begin with."
    )
    min: Annotated[int, Field(ge=0, le=1024)] | None = Field(
        default=None,
        description="Idle engines are taken away down to this many. 0: all of them, and the next request starts one.",
    )
    max: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="Engines are added under load up to this many."
    )

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if (self.min is None) != (self.max is None):
            raise ValueError("min and max need each other; without them replicas alone counts")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        return self
