"""Rules that the API server checks itself, written beside the types they belong to (CEL, x-kubernetes-validations).

The Python validators of the same types stay the truth for `aegaeon up`; a test holds both against the same manifests.
"""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.config import JsonDict, JsonValue

VALIDATIONS = "x-kubernetes-validations"


def rules(*pairs: tuple[str, str]) -> ConfigDict:
    """`model_config` of a type with (CEL expression, what to do when it does not hold) for its objects."""
    return ConfigDict(json_schema_extra=field_rules(*pairs))


def field_rules(*pairs: tuple[str, str]) -> JsonDict:
    """`json_schema_extra` of a field with (CEL expression, what to do when it does not hold) for its value."""
    found: list[JsonValue] = [{"rule": rule, "message": message} for rule, message in pairs]
    return {VALIDATIONS: found}


def list_map(key: str) -> JsonDict:
    """`json_schema_extra` of a list whose items are keyed by `key`: the API server refuses a key given twice."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
