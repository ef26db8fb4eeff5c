"""Content that the pool's Secrets already have; a new operator uses it for tenants' Secrets that it cannot read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Observed
from aegaeon_operator.reconcile.cluster.names import SCHEDULERS, child
from aegaeon_operator.reconcile.cluster.shards import MODELS, MODELS_ENTRY, shard_names
from aegaeon_proto.parts import joined


@dataclass(frozen=True, slots=True)
class AppliedSecrets:
    """Content of the pool's Secrets. `hashes`: of keys by the tenant's name in the pool; `credentials`: by file."""

    hashes: Mapping[str, list[str]] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, observed: Observed) -> AppliedSecrets:
        """Read the observed children."""
        parts = list(_parts(observed))
        tenants = joined(parts)["tenants"] if parts else _before(observed)
        hashes = {entry["name"]: list(entry.get("key_sha256", ())) for entry in tenants.get("tenants", ())}
        shards = [_entries(observed, name) for name in shard_names(observed.key, "credentials")]
        credentials = {name: text for shard in shards for name, text in shard.items()}
        return cls(hashes, credentials or _entries(observed, child(observed.key, "credentials")))


def _parts(observed: Observed) -> Iterator[Json]:
    for name in shard_names(observed.key, MODELS):
        yield from _read(_entries(observed, name).get(MODELS_ENTRY, "[]"), [])


def _before(observed: Observed) -> Json:
    """Return the tenants as an operator of the previous release wrote them."""
    text = _entries(observed, child(observed.key, "config")).get(f"{SCHEDULERS[0]}.json", "{}")
    tenants: Json = _read(text, {}).get("tenants") or {}
    return tenants


def _read(text: str, corrupted: Any) -> Any:
    """Parse JSON; a corrupted Secret, which is about to be replaced, gives `corrupted`."""
    try:
        return json.loads(text)
    except ValueError:
        return corrupted


def _entries(observed: Observed, name: str) -> dict[str, str]:
    secret = observed.children.get(ChildKey("Secret", observed.key.namespace, name), {})
    try:
        return {name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()}
    except (binascii.Error, UnicodeDecodeError):
        return {}
