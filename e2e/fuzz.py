"""Objects with every field set, one of which is wrong as people get it wrong."""

from __future__ import annotations

import copy
from typing import Any

import yaml
from fuzz.places import places
from hypothesis import strategies as st

from e2e.kubectl import REPOSITORY

EVERYTHING = REPOSITORY / "e2e" / "everything.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(EVERYTHING.read_text("utf-8")))
PLACES = [(number, ("spec", *path)) for number, document in enumerate(DOCUMENTS) for path in places(document["spec"])]
# Values as people get them wrong. No null: the API server takes it for a field that was left out.
VALUES = st.one_of(
    st.booleans(),
    st.integers(-2, 5000),
    st.floats(0.5, 1.5).filter(lambda number: number != 1),  # the API server takes 1.0 for 1
    st.text(max_size=8),
    st.sampled_from(
        [
            "0",
            "1Mi",
            "3Ki",
            "1.5Gi",
            "100",
            "-1Mi",
            "10s",
            "0s",
            "1m30s",
            "1.5h",
            "10",
            "cpu",
            "cuda:1",
            "cuda:",
            "torch",
        ]
    ),
    st.just([]),
    st.just({}),
    st.dictionaries(st.sampled_from(["replicas", "name", "hostPath", "ttft", "extra"]), st.integers(0, 2), max_size=2),
)


def changed(number: int, path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENTS[number])
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return document
