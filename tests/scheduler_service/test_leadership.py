"""A standby scheduler: it receives models and tenants, refuses streams, and starts its core when it leads."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc

from aegaeon_proto.v1 import admin_pb2, engine_pb2, gateway_pb2, leadership_pb2, leadership_pb2_grpc, model_pb2
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.snapshot import Snapshot
from aegaeon_scheduler.service.metrics import PoolMetrics


async def ask(stack: Any) -> leadership_pb2.LeaderReply:
    stub = leadership_pb2_grpc.LeadershipStub(await stack.channel())
    reply: leadership_pb2.LeaderReply = await stub.Ask(leadership_pb2.LeaderRequest())
    return reply


async def test_without_a_lease_it_leads_at_once_without_a_term(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        assert await ask(stack) == leadership_pb2.LeaderReply(leads=True, term=0)


async def test_a_standby_refuses_streams_accepts_the_catalog_and_starts_its_core_when_it_leads(
    serve: Any, brain: Any
) -> None:
    async with serve(brain) as stack:
        before = len(brain.received)
        stack.service.leadership.stand_by()
        assert await ask(stack) == leadership_pb2.LeaderReply(leads=False)
        sidecar = await stack.attach()
        with contextlib.suppress(grpc.aio.AioRpcError):  # the refusal may come before the report is written
            await sidecar.report(hello=engine_pb2.Hello(instance="decode-0"))
        refused = (grpc.StatusCode.UNAVAILABLE, "this scheduler stands by; another one leads")
        assert await sidecar.ended() == refused
        admin = await stack.admin()
        source = model_pb2.ModelSource(directory="/models/c")
        models = [model_pb2.ModelSpec(name="tiny-c", source=source, ttft_s=1, tbt_s=1)]
        await admin.SetCatalog(admin_pb2.SetCatalogRequest(models=models))
        await admin.SetTenants(admin_pb2.SetTenantsRequest(tenants=gateway_pb2.Tenants(open_models=["tiny-c"])))
        status = await admin.Status(admin_pb2.AdminStatusRequest())
        assert (status.standby, status.term) == (True, 0)
        assert len(brain.received) == before, "the core received an event"
        stack.service.leadership.lead(lambda: 7)
        assert await ask(stack) == leadership_pb2.LeaderReply(leads=True, term=7)
        status = await admin.Status(admin_pb2.AdminStatusRequest())
        assert (status.standby, status.term, status.tenants_known) == (False, 7, True)
        changed = brain.all_of(events.CatalogChanged)[-1]
        assert ModelName("tiny-c") in {model.name for model in changed.models}
        await stack.sidecar()
        gateway = await stack.gateway()
        assert (await gateway.next("tenants")).open_models == ["tiny-c"]


def test_the_metrics_of_a_standby_have_no_series_of_the_pool() -> None:
    assert "aegaeon_scheduler_instances_up" in exported(leads=True)
    assert exported(leads=False) == ["aegaeon_scheduler_leads"], "an alert on engines must not fire for it"


def exported(leads: bool) -> list[str]:
    empty = Snapshot(0.0, "scripted", (), (), (), ())
    return [one.name for one in PoolMetrics(lambda: empty, (), leads=lambda: leads).collect()]
