"""Tenants, their keys and grants, as plain values. Keys are known by their SHA-256 alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

from aegaeon_gateway.errors import ModelNotFoundError, UnauthorizedError
from aegaeon_proto.engine.catalog import Terms, Tier


@dataclass(frozen=True, slots=True)
class Quota:
    """Requests and tokens (prompt and output together) per minute; None: without end."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None


UNLIMITED = Quota()


_SERVICE_TIERS: Mapping[str, Tier] = {"default": Tier.STANDARD, "flex": Tier.BATCH}
"""values of `service_tier` that ask for a tier; others leave it as it is"""


def lowered(terms: Terms, service_tier: str) -> Terms:
    """Terms with the tier that a request asks for: one below its tenant's, never one above."""
    requested = _SERVICE_TIERS.get(service_tier, terms.tier)
    return replace(terms, tier=max(terms.tier, requested, key=attrgetter("level")))


@dataclass(frozen=True, slots=True)
class Tenant:
    """A client and the models that it may use. `name` is empty for a client without a key."""

    name: str
    models: frozenset[str]
    quota: Quota = UNLIMITED
    strict: bool = False
    """its requests are refused where they name what has no effect"""
    terms: Mapping[str, Terms] = field(default_factory=dict)
    """by model, where they are given"""

    @property
    def anonymous(self) -> bool:
        return not self.name

    def may_use(self, model: str, open_models: frozenset[str] | None) -> bool:
        """True when the model is granted, or open to every client (`open_models` None: all are)."""
        return open_models is None or model in open_models or model in self.models


ANYBODY = Tenant("", frozenset())


SHORTEST_KEY = 16
"""characters; keys are to be long and random, so that a plain hash tells nothing of them"""


def digest(key: str) -> str:
    """The hash that is kept in place of a key."""
    # surrogates: aiohttp hands on bytes of a header that are not UTF-8 as these
    return hashlib.sha256(key.strip().encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Directory:
    """All known tenants. `open_models` need no key; None: no model needs one."""

    tenants: tuple[Tenant, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)  # digest of a key -> name of its tenant
    open_models: frozenset[str] | None = None
    model_quotas: Mapping[str, Quota] = field(default_factory=dict)

    @cached_property
    def _by_name(self) -> dict[str, Tenant]:
        return {tenant.name: tenant for tenant in self.tenants}

    def identify(self, authorization: str) -> Tenant:
        """The tenant of an Authorization header. Raises UnauthorizedError for an unknown key.

        The look-up is by digest: how long it takes says nothing of any key.
        """
        if self.open_models is None:
            return ANYBODY
        scheme, _, key = authorization.partition(" ")
        if not key.strip():
            return ANYBODY
        name = self.keys.get(digest(key)) if scheme.lower() == "bearer" else None
        if name is None:
            raise UnauthorizedError("The API key is not known here; check it, or ask for a new one where you got it.")
        return self._by_name[name]

    def named(self, name: str) -> Tenant | None:
        """The tenant of now that has this name; the empty one is of clients without a key."""
        return self._by_name.get(name) if name else ANYBODY

    def check(self, tenant: Tenant, model: str, served: Iterable[str]) -> None:
        """Raises UnauthorizedError without a key, ModelNotFoundError for a model that is not the tenant's."""
        if tenant.may_use(model, self.open_models):
            return
        if tenant.anonymous:
            raise UnauthorizedError("This model needs an API key; send it as `Authorization: Bearer KEY`.")
        raise ModelNotFoundError(model, [name for name in served if tenant.may_use(name, self.open_models)])

    def visible(self, tenant: Tenant, model: str) -> bool:
        """True when the model is in the tenant's list of models."""
        return tenant.may_use(model, self.open_models)

    def quota_of(self, model: str) -> Quota:
        """The quota of a model for all tenants together."""
        return self.model_quotas.get(model, UNLIMITED)
