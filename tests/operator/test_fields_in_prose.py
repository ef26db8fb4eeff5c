"""Fields that the documentation names are fields of the custom resources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
PAGES = [*sorted(REPOSITORY.glob("docs/**/*.md")), REPOSITORY / "README.md"]
# A path of fields as manifests have it, in backticks; what has an underscore is of a config file.
_PATH = re.compile(r"`(?:spec\.)?([a-z][A-Za-z0-9]*(?:\.[a-z][A-Za-z0-9]*)+)`")


def paths(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """All fields below a schema, through lists as well."""
    for name, child in schema.get("properties", {}).items():
        yield prefix + name
        yield from paths(child.get("items", child), f"{prefix}{name}.")


@cache
def fields() -> frozenset[str]:
    """Of both resources, and the chart's values, which some pages name beside them."""
    found = set(_values(yaml.load((REPOSITORY / "helm/aegaeon/values.yaml").read_text(), yaml.CSafeLoader)))
    for file in (REPOSITORY / "crds").glob("*.yaml"):
        for version in yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]["versions"]:
            found |= set(paths(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))
    return frozenset(found)


def _values(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{name}.")


def named(text: str, known: frozenset[str]) -> set[str]:
    """The paths in a text whose first field is one of the resources' own; files of Python are none."""
    return {path for path in _PATH.findall(text) if path.split(".")[0] in known and not path.endswith(".py")}


def test_a_field_that_does_not_exist_is_seen() -> None:
    known = fields()
    assert named("the share `tracing.ratio`, not `tracing.percent`", known) - known == {"tracing.ratio"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_field_that_a_page_names_exists(page: Path) -> None:
    known = fields()
    assert named(page.read_text("utf-8"), known) <= known
