"""Checks across the tenants of a GpuPool's ModelPools; the same on one machine and in a cluster.

The caller reads the keys; messages name the field, and all problems are reported at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aegaeon_operator.spec.model_pool import ModelPool, Tenant

SHORTEST_KEY = 16
"""characters; keys are kept as plain hashes, from which a shorter key can be guessed. A later release refuses them"""


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """A tenant's entry in a ModelPool. `pool`: name of the ModelPool for messages; `place`: the field of the entry."""

    pool: str
    place: str
    known_as: str
    tenant: Tenant
    models: tuple[str, ...]

    @property
    def where(self) -> str:
        """Pool and field of the entry, for messages about another entry."""
        return f"{self.pool}: {self.place}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a tenant's entry: a reason for programs, the field, and a message."""

    claim: Claim
    reason: str
    place: str
    text: str


def claims(namespace: str, pool: ModelPool, label: str) -> Iterator[Claim]:
    """Yield the entries of a ModelPool, for a GpuPool in a namespace; tenants of other namespaces get a prefix."""
    own = pool.metadata.namespace
    models = tuple(name for model in pool.spec.models for name in model.names)
    for index, tenant in enumerate(pool.spec.tenants):
        known_as = tenant.name if own == namespace else f"{own}/{tenant.name}"
        yield Claim(label, f"spec.tenants[{index}]", known_as, tenant, models)


def contradictions(entries: Sequence[Claim]) -> Iterator[Problem]:
    """Yield grants of unknown models, and entries that contradict the first entry of the same tenant."""
    first: dict[str, Claim] = {}
    for claim in entries:
        for name in claim.tenant.models or ():
            if name not in claim.models:
                known = ", ".join(sorted(claim.models))
                text = f"tenant '{claim.tenant.name}' names '{name}', which is not a model or adapter of this ModelPool"
                text = f"{text}; known: {known}"
                yield Problem(claim, "GrantUnknown", f"{claim.place}.models", text)
        other = first.setdefault(claim.known_as, claim)
        if other is claim:
            continue
        if other.pool == claim.pool:
            text = f"tenant '{claim.tenant.name}' is a duplicate of {other.place}; rename one"
            yield Problem(claim, "TenantConflict", f"{claim.place}.name", text)
        elif _identity(other.tenant) != _identity(claim.tenant):
            keys = "keyFile" if claim.tenant.key_file else "keySecretRef"
            text = f"tenant '{claim.tenant.name}' has a different {keys} or quota in {other.where}"
            yield Problem(claim, "TenantConflict", claim.place, f"{text}; make them equal, or rename one")


def shared_keys(entries: Sequence[tuple[Claim, Sequence[str]]]) -> Iterator[tuple[Problem, str]]:
    """Yield the hashes of keys that another tenant has as well; the first tenant keeps the key."""
    owners: dict[str, Claim] = {}
    for claim, hashes in entries:
        for key_hash in hashes:
            owner = owners.setdefault(key_hash, claim)
            if owner.known_as != claim.known_as:
                text = f"tenant '{claim.tenant.name}' has a key of tenant '{owner.tenant.name}'; use different keys"
                yield Problem(claim, "KeyConflict", claim.place, text), key_hash


def hashes_of(content: str) -> list[str]:
    """Return the hashes of the keys in a file or an entry of a Secret, one key per line; keys are not kept."""
    return [hashlib.sha256(key.encode()).hexdigest() for key in content.split()]


def short_keys(content: str) -> int:
    """Return the number of keys shorter than `SHORTEST_KEY`."""
    return sum(len(key) < SHORTEST_KEY for key in content.split())


def _identity(tenant: Tenant) -> tuple[object, ...]:
    return tenant.key_file, tenant.key_secret_ref, tenant.quota
