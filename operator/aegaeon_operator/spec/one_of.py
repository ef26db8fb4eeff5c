"""Optional fields of a type of which exactly one is given: a rule for the API server, a check for `aegaeon up`."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

Model = TypeVar("Model", bound=BaseModel)


class OneOf:
    """`fields` by their names in Python, None where they are left out."""

    def __init__(self, *fields: str) -> None:
        written = [to_camel(name) for name in fields]
        given = [f"has(self.{name})" for name in written]
        self._fields = fields
        self._said = f"give exactly one of {', '.join(written)}"
        self._rule = " != ".join(given) if len(given) == 2 else f"[{', '.join(given)}].exists_one(x, x)"

    @property
    def rule(self) -> tuple[str, str]:
        """For `rules` of the type."""
        return self._rule, self._said

    def check(self, value: Model) -> Model:
        """For a validator of the type: the value as it is. Raises ValueError."""
        if sum(getattr(value, name) is not None for name in self._fields) != 1:
            raise ValueError(self._said)
        return value
