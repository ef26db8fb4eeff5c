"""Where what grows with tenants lies: in a fixed number of Secrets, since one holds 1 MiB and a pod's mounts are fixed.

A namespace has a bound, so that one tenant's models leave room for those of the others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field

from aegaeon_operator.reconcile.cluster.facts import Key, Refusal
from aegaeon_operator.reconcile.cluster.names import child

SHARDS = 8
SECRET_BYTES = 1 << 20
"""what Kubernetes lets a Secret hold"""
SHARD_BYTES = SECRET_BYTES - (16 << 10)
NAMESPACE_BYTES = 2 << 20
MODELS, MODELS_ENTRY = "models", "models.json"
"""the part of the pool that its models and tenants are, and the entry of its Secrets"""


def shard_names(key: Key, part: str) -> list[str]:
    """Secrets of a part of the pool, by number. Those without content are not there."""
    return [child(key, f"{part}-{number}") for number in range(SHARDS)]


@dataclass(slots=True)
class Room:
    """What is left in the shards of one part of a pool. `places`: where each thing lies, by namespace and name."""

    places: dict[tuple[str, str], int] = field(default_factory=dict)
    _free: list[int] = field(default_factory=lambda: [SHARD_BYTES] * SHARDS)
    _taken: Counter[str] = field(default_factory=Counter)

    def place(self, namespace: str, name: str, size: int) -> int | Refusal:
        """The shard of something of so many bytes, by hash, the next where that is full; or why there is none.

        Asked for the oldest first, what is there stays where it is when something is added.
        """
        if size > SHARD_BYTES:
            return Refusal("NoRoom", f"{_kib(size)} of configuration, and the most is {_kib(SHARD_BYTES)}; divide it")
        taken = self._taken[namespace] + size
        if taken > NAMESPACE_BYTES:
            text = f"with it, namespace {namespace} would have {_kib(taken)} of the pool's configuration"
            return Refusal("NoRoom", f"{text}, and the most is {_kib(NAMESPACE_BYTES)}; remove models or tenants")
        first = int.from_bytes(hashlib.sha256(f"{namespace}/{name}".encode()).digest()[:4])
        for shard in ((first + step) % SHARDS for step in range(SHARDS)):
            if size <= self._free[shard]:
                self._free[shard] -= size
                self._taken[namespace] = taken
                self.places[namespace, name] = shard
                return shard
        text = f"its {_kib(size)} of configuration have no room in the GpuPool's {SHARDS} Secrets"
        return Refusal("NoRoom", f"{text}; remove models or tenants, or use another GpuPool")


def _kib(size: int) -> str:
    return f"{size / 1024:,.0f} KiB"
