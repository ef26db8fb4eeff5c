"""Authorization within a pool: a certificate names one role, and every call is allowed for the listed roles only.

Clients check the server's role, servers the caller's. Streams over a unix socket have no certificate: who may open the
socket's file may call what is served there, so Admin has a socket of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

POOL_NAME = "aegaeon.internal"  # the domain of the DNS names in certificates; no name server knows it


class Role(StrEnum):
    """The role of a process of a pool."""

    OPERATOR = "operator"
    SCHEDULER = "scheduler"
    GATEWAY = "gateway"
    ENGINE = "engine"

    @property
    def dns_name(self) -> str:
        """The one name in the certificates of this role."""
        return f"{self}.{POOL_NAME}"


_OPERATOR, _GATEWAY, _ENGINE = (frozenset({role}) for role in (Role.OPERATOR, Role.GATEWAY, Role.ENGINE))

# The whole table: a method that is not here is refused to every role over TLS.
CALLERS: Mapping[str, frozenset[Role]] = {
    "/aegaeon.v1.Admin/SetCatalog": _OPERATOR,
    "/aegaeon.v1.Admin/SetTenants": _OPERATOR,
    "/aegaeon.v1.Admin/Status": _OPERATOR,
    "/aegaeon.v1.Admin/AwaitDemand": _OPERATOR,
    "/aegaeon.v1.Admin/SetEnding": _OPERATOR,
    "/aegaeon.v1.Frontend/Status": _OPERATOR,
    "/aegaeon.v1.Frontend/Serve": _GATEWAY,
    "/aegaeon.v1.Engine/Attach": _ENGINE,
    "/aegaeon.v1.Engine/Announce": _ENGINE,
    "/aegaeon.v1.Leadership/Ask": _GATEWAY | _ENGINE,
}
# Calls that change a pool: each is logged with its caller.
AUDITED = frozenset({"/aegaeon.v1.Admin/SetCatalog", "/aegaeon.v1.Admin/SetTenants"})


def role_of(names: Iterable[str]) -> Role | None:
    """The role of a certificate with these DNS names; None without a role, or with several."""
    known = {role.dns_name: role for role in Role}
    roles = {known[name] for name in names if name in known}
    return roles.pop() if len(roles) == 1 else None
