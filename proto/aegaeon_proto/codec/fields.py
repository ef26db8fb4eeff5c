"""Fields that a dataclass and its message have under one name, copied as they are; the rest is translated by name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Fields:
    """The plain fields of a dataclass, but for those `translated`. For messages that are not sent for each step."""

    def __init__(self, form: type[Any], *translated: str) -> None:
        self._names = tuple(field.name for field in fields(form) if field.name not in translated)

    def of(self, source: Any) -> dict[str, Any]:
        """Return the values by name, from a message or from a dataclass."""
        return {name: getattr(source, name) for name in self._names}
