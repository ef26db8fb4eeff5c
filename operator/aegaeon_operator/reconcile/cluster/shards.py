"""Shards of a pool's configuration: a fixed number of Secrets, since a Secret holds 1 MiB and a pod's mounts are fixed.

Each namespace has a limit, so that no tenant takes the space of the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.facts import Key, Refusal
from aegaeon_operator.reconcile.cluster.names import child

SHARDS = 8
SECRET_BYTES = 1 << 20
"""Kubernetes' maximum size of a Secret"""
SHARD_BYTES = SECRET_BYTES - (16 << 10)
NAMESPACE_BYTES = 2 << 20
MODELS, MODELS_ENTRY = "models", "models.json"
"""the pool's Secrets of models and tenants, and their entry"""


def shard_names(key: Key, part: str) -> list[str]:
    """Return the Secrets of a part of the pool, by number; empty ones do not exist."""
    return [child(key, f"{part}-{number}") for number in range(SHARDS)]


@dataclass(slots=True)
class Shards:
    """Free space in the shards of a part of a pool. `places`: shard of each item, by namespace and name."""

    places: dict[tuple[str, str], int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=lambda: [SHARD_BYTES] * SHARDS)
    _taken: Counter[str] = field(default_factory=Counter)

    def place(self, namespace: str, name: str, size: int) -> int | Refusal:
        """Return the shard for an item of `size` bytes: by hash, or the next with space; or the refusal.

        Items are placed oldest first, so that existing ones keep their shard when items are added.
        """
        if size > SHARD_BYTES:
            return Refusal("NoRoom", f"its configuration of {_kib(size)} exceeds {_kib(SHARD_BYTES)}; split it")
        taken = self._taken[namespace] + size
        if taken > NAMESPACE_BYTES:
            text = f"namespace {namespace} would need {_kib(taken)} of the pool's configuration"
            return Refusal("NoRoom", f"{text}, more than {_kib(NAMESPACE_BYTES)}; remove models or tenants")
        first = int.from_bytes(hashlib.sha256(f"{namespace}/{name}".encode()).digest()[:4])
        for shard in ((first + step) % SHARDS for step in range(SHARDS)):
            if size <= self._free[shard]:
                self._free[shard] -= size
                self._taken[namespace] = taken
                self.places[namespace, name] = shard
                return shard
        text = f"its configuration of {_kib(size)} does not fit in the GpuPool's {SHARDS} Secrets"
        return Refusal("NoRoom", f"{text}; remove models or tenants, or use another GpuPool")


def _kib(size: int) -> str:
    return f"{size / 1024:,.0f} KiB"
