"""Who may use which models of a pool, as the gateways read it."""

from __future__ import annotations

from aegaeon_operator.reconcile.pods import Json
from aegaeon_operator.reconcile.processes import quota_entry
from aegaeon_operator.spec import Pool
from aegaeon_operator.spec.resources import Quota, Tenant


def tenants_file(pool: Pool) -> Json | None:
    """The content of the gateways' tenants file; None when every model is open and has no quota."""
    granted: dict[str, list[str]] = {}
    tenants: dict[str, Tenant] = {}
    open_models: list[str] = []
    for model_pool in pool.model_pools:
        names = [model.name for model in model_pool.spec.models]
        if not model_pool.spec.tenants:
            open_models += names
        for tenant in model_pool.spec.tenants:
            tenants[tenant.name] = tenant
            granted.setdefault(tenant.name, []).extend(tenant.models or names)
    quotas = {model.name: quota_entry(model.quota) for model in pool.models if model.quota != Quota()}
    if not tenants and not quotas:
        return None
    return {
        "tenants": [
            {"name": name, "models": granted[name], "key_files": [one.key_file], "quota": quota_entry(one.quota)}
            for name, one in tenants.items()
        ],
        "open_models": open_models,
        "model_quotas": quotas,
    }
