"""What the pool's Secrets say already: what counts of a tenant's Secret that an operator, just started, cannot read."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Observed
from aegaeon_operator.reconcile.cluster.names import SCHEDULERS, child


@dataclass(frozen=True, slots=True)
class Written:
    """`hashes` of tenants' keys by the name that the pool has for each; `credentials` by the name of their file."""

    hashes: Mapping[str, list[str]] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, observed: Observed) -> Written:
        """As the children have it."""
        text = _entries(observed, "config").get(f"{SCHEDULERS[0]}.json", "{}")
        try:
            tenants: Json = json.loads(text).get("tenants") or {}
        except ValueError:  # it was corrupted, and is about to be written anew
            tenants = {}
        hashes = {one["name"]: list(one.get("key_sha256", ())) for one in tenants.get("tenants", ())}
        return cls(hashes, _entries(observed, "credentials"))


def _entries(observed: Observed, part: str) -> dict[str, str]:
    secret = observed.children.get(ChildKey("Secret", observed.key.namespace, child(observed.key, part)), {})
    try:
        return {name: base64.b64decode(value).decode() for name, value in (secret.get("data") or {}).items()}
    except (binascii.Error, UnicodeDecodeError):
        return {}
