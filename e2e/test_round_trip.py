"""Objects with every field set survive the API server, and fields that it does not know are reported: v1alpha1 is ready
for a version that is converted to and from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from tests.operator.test_round_trip import objects as objects_in

from aegaeon_operator.spec.resources import GROUP, VERSION, GpuPool, ModelPool
from e2e.kubectl import kubectl
from e2e.maximal import maximal
from e2e.operating import objects

Json = dict[str, Any]
KINDS: dict[str, type[GpuPool] | type[ModelPool]] = {"GpuPool": GpuPool, "ModelPool": ModelPool}
MAXIMAL = maximal()
NAMES = [f"{one['kind']}-{one['metadata']['name']}" for one in MAXIMAL]
AT_ONCE = 40  # the API server tells 100 at most
pytestmark = pytest.mark.cluster


@pytest.fixture
def server(namespaced: Path) -> Path:
    """A namespace that no operator works in."""
    return namespaced


def of_server(server: Path, document: Json) -> Json:
    """As the API server has it."""
    (found,) = (
        one for one in objects(server, f"{document['kind'].lower()}s") if one["metadata"]["name"] == _name(document)
    )
    return found


def _name(document: Json) -> str:
    return str(document["metadata"]["name"])


def differences(given: Any, found: Any, path: str = "spec") -> Iterator[str]:
    """Fields that were given and are not there as they were given; the API server adds defaults."""
    if isinstance(given, dict):
        for name, value in given.items():
            yield from differences(value, found.get(name) if isinstance(found, dict) else None, f"{path}.{name}")
    elif isinstance(given, list) and isinstance(found, list) and len(given) == len(found):
        for number, value in enumerate(given):
            yield from differences(value, found[number], f"{path}[{number}]")
    elif given != found:
        yield f"{path}: {given!r} became {found!r}"


def parsed(body: Json) -> GpuPool | ModelPool:
    """As the operator reads it."""
    known = {name: body[name] for name in ("apiVersion", "kind", "spec")}
    return KINDS[body["kind"]].model_validate_json(json.dumps({**known, "metadata": {"name": _name(body)}}))


@pytest.mark.parametrize("document", MAXIMAL, ids=NAMES)
def test_every_field_survives_apply_and_get(server: Path, document: Json) -> None:
    kubectl(server, "apply", "--server-side", "-f", "-", stdin=json.dumps(document))

    found = of_server(server, document)

    assert list(differences(document["spec"], found["spec"])) == []
    assert parsed(found) == parsed(document), "defaults of the API server are those of our types"


@pytest.mark.parametrize("document", MAXIMAL, ids=NAMES)
def test_what_was_read_is_written_back_without_a_change(server: Path, document: Json) -> None:
    kubectl(server, "create", "-f", "-", stdin=json.dumps(document))
    found = of_server(server, document)

    kubectl(server, "replace", "-f", "-", stdin=json.dumps(found))
    ours = parsed(found).model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    kubectl(server, "replace", "-f", "-", stdin=json.dumps({**document, "spec": ours}))

    assert of_server(server, document)["metadata"]["generation"] >= found["metadata"]["generation"]
    assert parsed(of_server(server, document)) == parsed(found)


@pytest.mark.parametrize("document", MAXIMAL, ids=NAMES)
def test_unknown_fields_are_reported_wherever_they_are_all_at_once(
    server: Path, api: client.ApiClient, document: Json
) -> None:
    changed = json.loads(json.dumps(document))
    places = list(objects_in(changed["spec"], "spec"))
    for some in batched(places, AT_ONCE):
        for _, inside in some:
            inside["frobnicate"] = 1
        said = refusal(api, changed)
        assert [path for path, _ in some if f'unknown field "{path}.frobnicate"' not in said] == []
        for _, inside in some:
            del inside["frobnicate"]


def test_an_unknown_field_is_dropped_with_a_warning_where_it_is_not_refused(server: Path) -> None:
    document = json.loads(json.dumps(MAXIMAL[0]))
    document["spec"]["frobnicate"] = 1

    kubectl(server, "create", "--validate=warn", "-f", "-", stdin=json.dumps(document))

    assert "frobnicate" not in of_server(server, document)["spec"]


def batched(items: list[tuple[str, Json]], size: int) -> Iterator[list[tuple[str, Json]]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def refusal(api: client.ApiClient, document: Json) -> str:
    """What the API server has against it."""
    where = (GROUP, VERSION, "default", f"{document['kind'].lower()}s")
    with pytest.raises(ApiException) as raised:
        client.CustomObjectsApi(api).create_namespaced_custom_object(
            *where, document, dry_run="All", field_validation="Strict"
        )
    return str(json.loads(raised.value.body or "{}")["message"])


def test_the_stored_version_is_the_one_that_is_served(server: Path) -> None:
    for plural in ("gpupools", "modelpools"):
        found = json.loads(kubectl(server, "get", "crd", f"{plural}.serving.aegaeon.io", "-o", "json"))
        assert found["status"]["storedVersions"] == [VERSION]
        assert found["spec"]["conversion"]["strategy"] == "None"
