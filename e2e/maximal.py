"""Objects that have every field of both kinds set between them: everything.yaml, and GpuPools with the rest."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from e2e.fuzz import DOCUMENTS
from e2e.kubectl import REPOSITORY

_ALTERNATIVES = REPOSITORY / "e2e" / "alternatives.yaml"


def maximal() -> list[dict[str, Any]]:
    """All of them, by kind and name."""
    pool = next(one for one in DOCUMENTS if one["kind"] == "GpuPool")
    others = yaml.safe_load_all(_ALTERNATIVES.read_text("utf-8"))
    changed = [
        {**pool, "metadata": {"name": f"alternative-{number}"}, "spec": merged(pool["spec"], change)}
        for number, change in enumerate(others)
    ]
    return [*copy.deepcopy(DOCUMENTS), *changed]


def merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A merge patch: objects are merged, all else is replaced, and null removes."""
    found = copy.deepcopy(base)
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name) or {}, value) if isinstance(value, dict) else value
    return found
