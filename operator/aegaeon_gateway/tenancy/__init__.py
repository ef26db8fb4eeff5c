"""Who asks, for what, and how much: API keys, grants, quotas."""

from aegaeon_gateway.tenancy.buckets import Buckets, MemoryBuckets, connect
from aegaeon_gateway.tenancy.file import TenantsFile
from aegaeon_gateway.tenancy.limits import Limits
from aegaeon_gateway.tenancy.model import Directory, Quota, Tenant
from aegaeon_gateway.tenancy.salts import PrefixSalts
from aegaeon_gateway.tenancy.tenants import Tenants

__all__ = [
    "Buckets",
    "Directory",
    "Limits",
    "MemoryBuckets",
    "PrefixSalts",
    "Quota",
    "Tenant",
    "Tenants",
    "TenantsFile",
    "connect",
]
