"""Optional fields of which exactly one must be set: a rule for the API server, a check for `aegaeon up`."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, model_validator
from pydantic.alias_generators import to_camel

Model = TypeVar("Model", bound=BaseModel)


class ExclusiveFields:
    """Fields, by their names in Python, that exclude each other; None: not set."""

    def __init__(self, *fields: str) -> None:
        written = [to_camel(name) for name in fields]
        is_set = [f"has(self.{name})" for name in written]
        self._fields = fields
        self._message = f"set exactly one of {', '.join(written)}"
        self._rule = " != ".join(is_set) if len(is_set) == 2 else f"[{', '.join(is_set)}].exists_one(x, x)"

    @property
    def rule(self) -> tuple[str, str]:
        """The rule and its message, for `rules` of the type."""
        return self._rule, self._message

    @property
    def validator(self) -> Any:
        """The check of it in Python, for the body of the type."""

        def check(value: Model) -> Model:
            if sum(getattr(value, name) is not None for name in self._fields) != 1:
                raise ValueError(self._message)
            return value

        return model_validator(mode="after")(check)
