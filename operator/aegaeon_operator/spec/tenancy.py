"""Tenants of the ModelPools of one GpuPool, held against each other: the same checks on one machine and in a cluster.

The caller says where keys are read; sentences name the field, and all that is wrong is found at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aegaeon_operator.spec.model_pool import ModelPool, Tenant

SHORTEST_KEY = 16
"""characters; keys are kept as plain hashes, and a shorter one is found from its hash. A later release refuses them"""


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What one ModelPool says of one tenant. `pool`: that ModelPool in sentences; `place`: the field that says it."""

    pool: str
    place: str
    known_as: str
    tenant: Tenant
    models: tuple[str, ...]

    @property
    def where(self) -> str:
        """For a sentence about another claim."""
        return f"{self.pool}: {self.place}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a claim: a reason for programs, the field, and a sentence."""

    claim: Claim
    reason: str
    place: str
    text: str


def claims(namespace: str, pool: ModelPool, label: str) -> Iterator[Claim]:
    """Of a ModelPool, for a GpuPool in a namespace: tenants of other namespaces are distinguished by theirs."""
    own = pool.metadata.namespace
    models = tuple(name for model in pool.spec.models for name in model.names)
    for index, tenant in enumerate(pool.spec.tenants):
        known_as = tenant.name if own == namespace else f"{own}/{tenant.name}"
        yield Claim(label, f"spec.tenants[{index}]", known_as, tenant, models)


def contradictions(found: Sequence[Claim]) -> Iterator[Problem]:
    """Grants of what is not there, and tenants that are two: the first claim of a name says who it is."""
    first: dict[str, Claim] = {}
    for claim in found:
        for name in claim.tenant.models or ():
            if name not in claim.models:
                known = ", ".join(sorted(claim.models))
                what = f"'{name}', no model or adapter of this ModelPool"
                text = f"tenant '{claim.tenant.name}' is granted {what}; known: {known}"
                yield Problem(claim, "GrantUnknown", f"{claim.place}.models", text)
        other = first.setdefault(claim.known_as, claim)
        if other is claim:
            continue
        if other.pool == claim.pool:
            text = f"tenant '{claim.tenant.name}' is given twice, first in {other.place}; rename one"
            yield Problem(claim, "TenantConflict", f"{claim.place}.name", text)
        elif _identity(other.tenant) != _identity(claim.tenant):
            keys = "keyFile" if claim.tenant.key_file else "keySecretRef"
            text = f"tenant '{claim.tenant.name}' has another {keys} or quota in {other.where}"
            yield Problem(claim, "TenantConflict", claim.place, f"{text}; make them equal, or rename one")


def shared_keys(found: Sequence[tuple[Claim, Sequence[str]]]) -> Iterator[tuple[Problem, str]]:
    """Keys (by their hashes) that belong to another tenant already; the first to have one keeps it."""
    owners: dict[str, Claim] = {}
    for claim, hashes in found:
        for one in hashes:
            owner = owners.setdefault(one, claim)
            if owner.known_as != claim.known_as:
                text = f"tenant '{claim.tenant.name}' has a key of tenant '{owner.tenant.name}'; give it its own"
                yield Problem(claim, "KeyConflict", claim.place, text), one


def hashes_of(content: str) -> list[str]:
    """Of the keys in a file or an entry of a Secret, one a line; keys themselves go no further."""
    return [hashlib.sha256(key.encode()).hexdigest() for key in content.split()]


def short_keys(content: str) -> int:
    """How many of the keys are shorter than `SHORTEST_KEY`."""
    return sum(len(key) < SHORTEST_KEY for key in content.split())


def _identity(tenant: Tenant) -> tuple[object, ...]:
    return tenant.key_file, tenant.key_secret_ref, tenant.quota
