"""Who asks, for what, and how much: API keys, grants, quotas."""

from aegaeon_gateway.tenancy.buckets import Counting, connect
from aegaeon_gateway.tenancy.charge import Charge
from aegaeon_gateway.tenancy.file import TenantsFile
from aegaeon_gateway.tenancy.limits import Limits
from aegaeon_gateway.tenancy.model import Directory, Quota, Tenant, lowered
from aegaeon_gateway.tenancy.salts import PrefixSalts
from aegaeon_gateway.tenancy.tenants import Tenants, message_of

__all__ = [
    "Charge",
    "Counting",
    "Directory",
    "Limits",
    "PrefixSalts",
    "Quota",
    "Tenant",
    "Tenants",
    "TenantsFile",
    "connect",
    "lowered",
    "message_of",
]
