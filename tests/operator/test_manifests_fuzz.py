"""Whatever is written into a manifest, it is an object or a sentence: nothing else ever comes out."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aegaeon_operator.errors import ManifestError
from aegaeon_operator.spec import GpuPool, ModelPool, load_manifests
from aegaeon_operator.spec.resources import Strict

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"
DOCUMENTS = [yaml.safe_load((QUICKSTART / name).read_text("utf-8")) for name in ("gpupool.yaml", "modelpool.yaml")]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.binary(max_size=4)
keys = st.text(max_size=8) | st.integers() | st.sampled_from(["name", "replicas", "hostPath", "memory", "models"])
values = st.recursive(
    scalars | st.text(max_size=8) | st.sampled_from(["1Mi", "10s", "cpu", "torch", "999999999999Ei", "1e999s"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every path into nested lists and mappings."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


PLACES = [(number, path) for number, document in enumerate(DOCUMENTS) for path in places(document)]


def changed(number: int, path: tuple[Any, ...], value: Any) -> list[Any]:
    """Both documents, one with `value` at `path`."""
    documents = copy.deepcopy(DOCUMENTS)
    if not path:
        documents[number] = value
        return documents
    inner = documents[number]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return documents


def problems(folder: Path) -> tuple[str, ...]:
    try:
        load_manifests(folder, folder)
    except ManifestError as error:
        return error.problems or ("refused without a reason",)
    return ()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=values)
def test_any_value_at_any_place_is_accepted_or_explained(tmp_path: Path, place: tuple[int, Any], value: Any) -> None:
    (tmp_path / "pool.yaml").write_text(yaml.dump_all(changed(*place, value), allow_unicode=True), "utf-8")
    for problem in problems(tmp_path):
        assert problem.startswith(f"{tmp_path}/pool.yaml: document ") or "has no GpuPool" in problem


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_text_is_accepted_or_explained(tmp_path: Path, text: str) -> None:
    (tmp_path / "pool.yaml").write_text(text, "utf-8")
    with pytest.raises(ManifestError):
        load_manifests(tmp_path, tmp_path)


def test_every_field_has_a_description() -> None:
    objects = Strict.__subclasses__()
    assert {GpuPool, ModelPool} <= set(objects)
    bare = [f"{o.__name__}.{name}" for o in objects for name, f in o.model_fields.items() if not f.description]
    assert bare == []
