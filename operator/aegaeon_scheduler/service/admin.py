"""Service Admin, for the operator of the pool: models and tenants that change while it serves, and its status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc, gateway_pb2, leadership_pb2
from aegaeon_scheduler.errors import RequestError
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.changes import CatalogChanges
from aegaeon_scheduler.service.engine import EngineService
from aegaeon_scheduler.service.frontend import FrontendService
from aegaeon_scheduler.service.tenants import checked

Context = grpc.aio.ServicerContext[Any, Any]


class AdminService(admin_pb2_grpc.AdminServicer):
    """Servicer of `Admin`. `incarnation` names this life of the scheduler; `status` takes the picture of the pool."""

    def __init__(
        self,
        incarnation: str,
        catalog: Catalog,
        changes: CatalogChanges,
        frontend: FrontendService,
        engines: EngineService,
        status: Callable[[], Awaitable[gateway_pb2.PoolStatus]],
        leadership: Callable[[], leadership_pb2.LeaderReply],
    ) -> None:
        self._incarnation = incarnation
        self._catalog = catalog
        self._changes = changes
        self._frontend = frontend
        self._engines = engines
        self._status = status
        self._leadership = leadership

    async def SetCatalog(self, request: admin_pb2.SetCatalogRequest, context: Context) -> admin_pb2.SetCatalogReply:
        """The whole list of models."""
        return self._changes.set(request)

    async def SetTenants(self, request: admin_pb2.SetTenantsRequest, context: Context) -> admin_pb2.SetTenantsReply:
        """The whole document of tenants."""
        try:
            return admin_pb2.SetTenantsReply(changed=self._frontend.set_tenants(checked(request.tenants)))
        except RequestError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def AwaitDemand(self, request: admin_pb2.AwaitDemandRequest, context: Context) -> admin_pb2.AwaitDemandReply:
        """Answer as soon as a request is open; the caller says how long it waits."""
        await self._frontend.demand()
        return admin_pb2.AwaitDemandReply()

    async def SetEnding(self, request: admin_pb2.SetEndingRequest, context: Context) -> admin_pb2.SetEndingReply:
        """Engines to which nothing new is to go."""
        self._engines.set_ending(request.instances, request.for_s)
        return admin_pb2.SetEndingReply()

    async def Status(self, request: admin_pb2.AdminStatusRequest, context: Context) -> admin_pb2.AdminStatus:
        """The pool as it stands."""
        leadership = self._leadership()
        return admin_pb2.AdminStatus(
            standby=not leadership.leads,
            term=leadership.term,
            incarnation=self._incarnation,
            pool=await self._status(),
            catalog=self._frontend.catalog(),
            withdrawing=sorted(self._catalog.withdrawing),
            gateways=self._frontend.gateways(),
            tenants_known=self._frontend.tenants_known,
            refused=self._changes.refused(),
            changing=self._changes.changing(),
        )
