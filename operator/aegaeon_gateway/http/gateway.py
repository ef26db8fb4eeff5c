"""The parts of a gateway that the handlers of all endpoints share."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from aegaeon_gateway.batches.kept import Kept
from aegaeon_gateway.config import GatewayConfig
from aegaeon_gateway.conversations import Conversations
from aegaeon_gateway.http.intake import Intake
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog
from aegaeon_gateway.models.texts import Texts
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.tenancy import Limits, PrefixSalts, Tenant, Tenants
from aegaeon_gateway.workers.pool import WorkerPool
from aegaeon_proto.tracing import Tracing

TENANT = web.RequestKey("tenant", Tenant)


@dataclass(frozen=True, slots=True)
class Gateway:
    """The parts of a gateway, each the owner of its own."""

    config: GatewayConfig
    catalog: Catalog
    texts: Texts
    workers: WorkerPool
    intake: Intake
    link: SchedulerLink
    metrics: Metrics
    tenants: Tenants
    salts: PrefixSalts
    limits: Limits
    tracing: Tracing
    conversations: Conversations
    batches: Kept | None  # where the pool keeps files and batches
    started: int  # unix seconds

    @property
    def known(self) -> bool:
        """The model catalog and the tenants are loaded."""
        return self.catalog.known and self.tenants.known
