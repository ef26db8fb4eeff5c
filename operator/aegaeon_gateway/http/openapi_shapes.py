"""Pieces of which the descriptions of answers are made."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

STRING: Json = {"type": "string"}
COUNT: Json = {"type": "integer", "minimum": 0}
IDS: Json = {"type": "array", "items": COUNT}


def fields(**properties: Json) -> Json:
    """An object that has them all."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}
