"""A pool's models and tenants in parts, one for each ModelPool: how the operator writes them, and how they are joined.

A Secret holds 1 MiB, so parts lie in several. A part is {"models": entries of the catalog, "tenants": message Tenants}.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


def joined(parts: Iterable[Json]) -> Json:
    """All parts as one, by name. A tenant in several parts has the models and keys of each.

    A model that two parts have is the first's: what moved from one Secret to another may be seen in both.
    """
    models: dict[str, Json] = {}
    tenants: dict[str, Json] = {}
    open_models: set[str] = set()
    quotas: Json = {}
    for part in parts:
        for model in part["models"]:
            models.setdefault(model["name"], model)
        document = part["tenants"]
        for tenant in document["tenants"]:
            name = tenant["name"]
            tenants[name] = _both(tenants[name], tenant) if name in tenants else tenant
        open_models.update(document["open_models"])
        quotas |= document["model_quotas"]
    return {
        "models": [models[name] for name in sorted(models)],
        "tenants": {
            "tenants": [tenants[name] for name in sorted(tenants)],
            "open_models": sorted(open_models),
            "model_quotas": quotas,
        },
    }


def _both(first: Json, second: Json) -> Json:
    """A tenant as two parts have it: each says its terms for its own models, and all else is the same in both."""
    unions = {name: sorted({*first[name], *second[name]}) for name in ("models", "key_sha256")}
    terms = {**second.get("terms", {}), **first.get("terms", {})}
    return {**second, **first, **unions, **({"terms": terms} if terms else {})}
