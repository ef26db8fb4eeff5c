"""The references of ModelPools to Secrets of their own namespace, looked up in what was observed."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_operator.reconcile.cluster.facts import Live, Observed
from aegaeon_operator.spec.base import SecretRef
from aegaeon_operator.spec.resources import ModelPool
from aegaeon_operator.spec.tenancy import short_keys


def secrets_of(pool: ModelPool) -> Iterator[SecretRef]:
    """Yield the references to Secrets of a ModelPool, in its own namespace."""
    for tenant in pool.spec.tenants:
        if tenant.key_secret_ref:
            yield tenant.key_secret_ref
    for model in pool.spec.models:
        for source in (model.source, *(adapter.source for adapter in model.adapters)):
            if source.guarded and source.guarded.credentials_secret_ref:
                yield source.guarded.credentials_secret_ref


def entry(observed: Observed, pool: Live[ModelPool], ref: SecretRef) -> str | None:
    """Return the last content of the entry; None: there is none, or it was never read."""
    return observed.secrets.get((pool.namespace, ref.name), {}).get(ref.key)


def missing(observed: Observed, pool: Live[ModelPool], ref: SecretRef) -> tuple[str, str]:
    """Return the reason and the message for a Secret without the entry."""
    why = observed.unreadable.get((pool.namespace, ref.name))
    if why:
        return "SecretUnreadable", f"Secret {ref.name} in namespace {pool.namespace} cannot be read: {why}"
    return "SecretNotFound", f"Secret {ref.name} in namespace {pool.namespace} does not exist or has no entry {ref.key}"


def unreadable(observed: Observed, pool: Live[ModelPool]) -> str:
    """Return a message about Secrets of a ModelPool that cannot be read, whose last content still applies; or ""."""
    if not observed.unreadable or pool.value is None:
        return ""
    errors = {ref.name: observed.unreadable.get((pool.namespace, ref.name)) for ref in secrets_of(pool.value)}
    return "; ".join(
        f"Secret {name} cannot be read, its last content is used: {why}" for name, why in sorted(errors.items()) if why
    )


def guessable(observed: Observed, pool: Live[ModelPool]) -> str:
    """Return the tenants of a ModelPool with keys that a later release will refuse; or ""."""
    tenants = pool.value.spec.tenants if pool.value else []
    refs = [(tenant.name, tenant.key_secret_ref) for tenant in tenants if tenant.key_secret_ref]
    short = [name for name, ref in refs if short_keys(entry(observed, pool, ref) or "")]
    return ", ".join(repr(name) for name in short)
