"""A change to every schema within a JSON schema, and to nothing in it that is data. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_DATA = ("const", "default", "enum", "examples")  # their values are no schemas
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")  # schemas by any names


def changed(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """`change` of each schema, inner ones first. Raises RecursionError where they are nested too deeply."""
    if isinstance(schema, list):
        return [changed(inner, change) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return change({keyword: _value(keyword, value, change) for keyword, value in schema.items()})


def _value(keyword: str, value: Any, change: Callable[[Schema], Schema]) -> Any:
    if keyword in _DATA:
        return value
    if keyword in _NAMED and isinstance(value, dict):
        return {name: changed(inner, change) for name, inner in value.items()}
    return changed(value, change)
