"""The CRDs: what people read in `kubectl explain` is complete, and what the API server needs is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aegaeon_operator.spec.crd import definitions

DEFINITIONS = definitions()


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below a schema with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")


def schema_of(plural: str) -> dict[str, Any]:
    (version,) = DEFINITIONS[plural]["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


ALL = [(plural, path, field) for plural in DEFINITIONS for path, field in fields(schema_of(plural), plural)]


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_every_field_is_explained_in_a_sentence(plural: str) -> None:
    silent = [
        path
        for kind, path, field in ALL
        if kind == plural and not path.endswith((".metadata", "[]")) and not field.get("description", "").endswith(".")
    ]
    assert silent == []


def test_every_list_and_text_that_a_rule_reads_is_bounded() -> None:
    """The API server refuses rules whose cost it cannot bound."""
    endless = [
        path
        for _, path, field in ALL
        if ("x-kubernetes-validations" in field or field.get("x-kubernetes-list-type") == "map")
        and field.get("type") in ("string", "array")
        and not {"maxLength", "maxItems"} & set(field)
    ]
    assert endless == []


def test_every_rule_names_the_remedy() -> None:
    rules = [rule for _, _, field in ALL for rule in field.get("x-kubernetes-validations", ())]
    assert rules
    assert [rule["rule"] for rule in rules if len(rule["message"].split()) < 4] == []


def test_patterns_of_a_spec_are_shown_as_sentences() -> None:
    """Of a pattern the API server says nothing but `should match ...`. In lists of lists a rule would cost too much."""
    bare = [path for _, path, field in ALL if "pattern" in field and ".spec." in path]
    assert [path for path in bare if path.count("[]") < 2] == []
    memory = schema_of("gpupools")["properties"]["spec"]["properties"]["memory"]["properties"]
    said = [rule["message"] for rule in memory["deviceBytes"]["x-kubernetes-validations"]]
    assert said == ["must be a quantity of bytes such as 4096, 512Mi or 2G"]


_CONTAINER = {"env": "name", "volumeMounts": "mountPath", "resources.claims": "name"}
_TEMPLATE = {
    **_CONTAINER,
    **dict.fromkeys(("containers", "initContainers", "volumes", "resourceClaims"), "name"),
    **{
        f"{of}[].{name}": key
        for of in ("containers", "initContainers")
        for name, key in {**_CONTAINER, "ports": "containerPort"}.items()
    },
}


def test_lists_of_named_things_are_merged_by_their_keys() -> None:
    keys = {
        path: field["x-kubernetes-list-map-keys"] for _, path, field in ALL if "x-kubernetes-list-map-keys" in field
    }
    assert keys == {
        **{
            f"gpupools.spec.{of}.{name}": [key]
            for of in ("podTemplate", "controlPodTemplate")
            for name, key in _TEMPLATE.items()
        },
        "gpupools.status.conditions": ["type"],
        "modelpools.spec.models": ["name"],
        "modelpools.spec.models[].adapters": ["name"],
        "modelpools.spec.tenants": ["name"],
        "modelpools.status.conditions": ["type"],
        "modelpools.status.models": ["name"],
    }


def test_defaults_are_written_as_a_person_would() -> None:
    spec = schema_of("gpupools")["properties"]["spec"]["properties"]
    assert spec["memory"]["properties"]["slabSize"]["default"] == "32Mi"
    assert spec["scheduling"]["default"] == {}
    assert spec["scheduling"]["properties"]["hold"]["default"] == "30s"


def test_every_schema_is_structural() -> None:
    forbidden = {"$ref", "$defs", "title", "const"}
    assert [(path, forbidden & set(field)) for _, path, field in ALL if forbidden & set(field)] == []


def test_free_keys_are_bounded_and_stand_beside_no_fixed_ones() -> None:
    free = [field for _, _, field in ALL if "additionalProperties" in field]
    assert free
    assert [field for field in free if "properties" in field or "maxProperties" not in field] == []
