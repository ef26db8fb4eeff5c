"""Tenants file of the gateways: the models and quota of each tenant."""

from __future__ import annotations

from collections.abc import Iterable

from aegaeon_operator.reconcile.pods import Json
from aegaeon_operator.reconcile.processes import quota_entry
from aegaeon_operator.spec import Pool
from aegaeon_operator.spec.resources import Quota, Tenant
from aegaeon_operator.spec.tenancy import claims


def terms_entry(tenant: Tenant, models: Iterable[str]) -> Json:
    """Return a tenant's terms for these models; empty where its manifest sets none."""
    terms: Json = {"weight": tenant.weight or 1, "tier": tenant.tier or "standard"}
    return {} if terms == {"weight": 1, "tier": "standard"} else dict.fromkeys(models, terms)


def tenants_file(pool: Pool) -> Json | None:
    """Return the content of the gateways' tenants file; None when every model is open and has no quota."""
    granted: dict[str, list[str]] = {}
    terms: dict[str, Json] = {}
    tenants: dict[str, Tenant] = {}
    namespace = pool.gpu_pool.metadata.namespace
    for model_pool in pool.model_pools:
        for claim in claims(namespace, model_pool, ""):
            tenants.setdefault(claim.known_as, claim.tenant)
            models = claim.tenant.models or claim.models
            granted.setdefault(claim.known_as, []).extend(models)
            terms.setdefault(claim.known_as, {}).update(terms_entry(claim.tenant, models))
    open_models = [
        name
        for model_pool in pool.model_pools
        if not model_pool.spec.tenants
        for model in model_pool.spec.models
        for name in model.names
    ]
    quotas = {model.name: quota_entry(model.quota) for model in pool.models if model.quota != Quota()}
    if not tenants and not quotas:
        return None
    return {
        "tenants": [
            {
                "name": name,
                "models": granted[name],
                "key_files": [tenant.key_file],
                "quota": quota_entry(tenant.quota),
                **({"strict": True} if tenant.strict else {}),
                **({"terms": terms[name]} if terms[name] else {}),
            }
            for name, tenant in tenants.items()
        ],
        "open_models": open_models,
        "model_quotas": quotas,
    }
