"""Rules that the API server checks, written beside the types they belong to (CEL, x-kubernetes-validations).

`aegaeon up` uses the Python validators of the same types; a test applies both to the same manifests.
"""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.config import JsonDict, JsonValue

VALIDATIONS = "x-kubernetes-validations"


def rules(*pairs: tuple[str, str]) -> ConfigDict:
    """Return the `model_config` of a type whose objects must satisfy (CEL expression, message otherwise) pairs."""
    return ConfigDict(json_schema_extra=field_rules(*pairs))


def field_rules(*pairs: tuple[str, str]) -> JsonDict:
    """Return `json_schema_extra` of a field whose value must satisfy (CEL expression, message otherwise) pairs."""
    validations: list[JsonValue] = [{"rule": rule, "message": message} for rule, message in pairs]
    return {VALIDATIONS: validations}


def list_map(key: str) -> JsonDict:
    """Return `json_schema_extra` of a list whose items are keyed by `key`: the API server refuses a duplicate key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
