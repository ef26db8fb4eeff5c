"""The tenants of now: the scheduler's newest list, and until the first arrives, the file's."""

from __future__ import annotations

import logging

from aegaeon_gateway.errors import overloaded
from aegaeon_gateway.tenancy.file import TenantsFile
from aegaeon_gateway.tenancy.model import Directory, Quota, Tenant
from aegaeon_proto.codec.nouns import TIERS, terms_from
from aegaeon_proto.engine.catalog import Terms
from aegaeon_proto.v1 import gateway_pb2 as pb

log = logging.getLogger(__name__)


class Tenants:
    """`by_scheduler`: no client is let in before the scheduler has sent the tenants."""

    def __init__(self, file: TenantsFile, *, by_scheduler: bool) -> None:
        self._file = file
        self._wait = by_scheduler
        self._received: Directory | None = None

    @property
    def known(self) -> bool:
        return not self._wait or self._received is not None

    def take(self, message: pb.Tenants) -> None:
        """The scheduler's word, in place of any before and of the file."""
        self._received = directory_of(message)
        log.info("%d tenants, as the scheduler says", len(self._received.tenants))

    def current(self) -> Directory:
        """Raises UnavailableError while they are unknown."""
        if not self.known:
            raise overloaded("The list of tenants is not loaded yet; try again.")
        return self._file.current() if self._received is None else self._received


def directory_of(message: pb.Tenants) -> Directory:
    """The wire's form as plain values. The scheduler has checked that names and keys are unique."""
    return Directory(
        tenants=tuple(map(_tenant, message.tenants)),
        keys={key: tenant.name for tenant in message.tenants for key in tenant.key_sha256},
        open_models=frozenset(message.open_models),
        model_quotas={name: _quota(quota) for name, quota in message.model_quotas.items()},
    )


def message_of(terms: Terms) -> pb.Terms:
    """The wire's form."""
    return pb.Terms(weight=terms.weight, tier=TIERS[terms.tier])


def _tenant(tenant: pb.Tenant) -> Tenant:
    terms = {model: terms_from(entry.tier, entry.weight) for model, entry in tenant.terms.items()}
    return Tenant(tenant.name, frozenset(tenant.models), _quota(tenant.quota), tenant.strict, terms)


def _quota(quota: pb.Quota) -> Quota:
    return Quota(
        quota.requests_per_minute if quota.HasField("requests_per_minute") else None,
        quota.tokens_per_minute if quota.HasField("tokens_per_minute") else None,
    )
