"""Objects with every field set come through our types unchanged; e2e/test_round_trip.py asks an API server the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from e2e.maximal import maximal
from pydantic import BaseModel, ValidationError

from aegaeon_operator.spec.crd import definitions
from aegaeon_operator.spec.explain import explain
from aegaeon_operator.spec.model_pool import ModelPoolSpec
from aegaeon_operator.spec.pods.containers import Container, InitContainer
from aegaeon_operator.spec.resources import VERSION, GpuPool, GpuPoolSpec, ModelPool

Json = dict[str, Any]
KINDS: dict[str, type[GpuPool] | type[ModelPool]] = {"GpuPool": GpuPool, "ModelPool": ModelPool}
MAXIMAL = maximal()
NAMES = [f"{one['kind']}-{one['metadata']['name']}" for one in MAXIMAL]
# Fields of a single machine, which an API server refuses.
OF_A_MACHINE = ("key_file", "credentials_file", "folder")


def classes(annotation: Any) -> Iterator[type[BaseModel]]:
    """Those that an annotation is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from classes(argument)


def known(of: type[BaseModel]) -> dict[type[BaseModel], set[str]]:
    """Fields of a type and of all types below it."""
    found: dict[type[BaseModel], set[str]] = {}
    waiting = [of]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = set(one.model_fields)
            waiting += [inner for field in one.model_fields.values() for inner in classes(field.annotation)]
    return found


def given(value: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """Fields that are set, by the types that they are of: a subclass sets those of its bases."""
    if isinstance(value, tuple):
        for one in value:
            yield from given(one)
    if isinstance(value, BaseModel):
        for name in value.model_fields_set:
            yield from ((base, name) for base in type(value).__mro__ if issubclass(base, BaseModel))
            yield from given(getattr(value, name))


def in_object(value: Any, path: str) -> Iterator[str]:
    """Paths of all fields that are set."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from in_object(inner, f"{path}.{name}")
    if isinstance(value, list):
        for inner in value:
            yield from in_object(inner, f"{path}[]")


@pytest.mark.parametrize(("kind", "spec"), [("GpuPool", GpuPoolSpec), ("ModelPool", ModelPoolSpec)])
def test_every_field_is_set_in_one_of_the_objects(kind: str, spec: type[BaseModel]) -> None:
    """Fails for a new field: set it in e2e/everything.yaml, or in e2e/alternatives.yaml where it excludes others."""
    read = (KINDS[kind].model_validate_json(json.dumps(one)) for one in MAXIMAL if one["kind"] == kind)
    found = {field for one in read for field in given(one.spec)}
    inherited = {(InitContainer, name) for name in Container.model_fields}  # set in containers
    wanted = {(of, name) for of, names in known(spec).items() for name in names if name not in OF_A_MACHINE}
    assert sorted(f"{of.__name__}.{name}" for of, name in wanted - found - inherited) == []


@pytest.mark.parametrize("document", MAXIMAL, ids=NAMES)
def test_what_is_written_is_read_again_as_the_same(document: Json) -> None:
    kind = KINDS[document["kind"]]
    read = kind.model_validate_json(json.dumps(document))
    written = read.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert kind.model_validate_json(json.dumps(written)) == read
    assert set(in_object(document["spec"], "spec")) <= set(in_object(written["spec"], "spec"))


@pytest.mark.parametrize("document", MAXIMAL, ids=NAMES)
def test_an_unknown_field_is_reported_wherever_it_is(document: Json) -> None:
    for path, inside in objects(document["spec"], "spec"):
        inside["frobnicate"] = 1
        with pytest.raises(ValidationError, match="frobnicate") as raised:
            KINDS[document["kind"]].model_validate_json(json.dumps(document))
        del inside["frobnicate"]
        sentences = explain(raised.value, KINDS[document["kind"]])
        assert [one for one in sentences if one.startswith(f"{path}.frobnicate: unknown field; allowed here: ")], path


FREE = ("labels", "annotations", "nodeSelector", "requests", "limits", "matchLabels", "podLabels", "volumeAttributes")


def objects(value: Any, path: str) -> Iterator[tuple[str, Json]]:
    """Every object with fields of its own, with its path; maps of any keys are none."""
    if isinstance(value, dict) and not path.endswith(FREE):
        yield path, value
        for name, inner in list(value.items()):
            yield from objects(inner, f"{path}.{name}")
    if isinstance(value, list):
        for number, inner in enumerate(value):
            yield from objects(inner, f"{path}[{number}]")


def test_one_version_is_served_and_stored_and_none_is_converted() -> None:
    for definition in definitions().values():
        versions = [(one["name"], one["served"], one["storage"]) for one in definition["spec"]["versions"]]
        assert versions == [(VERSION, True, True)]
        assert definition["spec"]["conversion"] == {"strategy": "None"}
