"""Models and tenants that change while the scheduler serves: over real streams, with the real core where it matters."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import grpc
import pytest

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc, engine_pb2, gateway_pb2, gateway_pb2_grpc, model_pb2
from aegaeon_scheduler.config import core_config, load_config
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import Terms, Tier
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.errors import ConfigError, ListenError
from aegaeon_scheduler.service.tenants import configured

CACHED = model_pb2.MODEL_PHASE_CACHED
FAILED = model_pb2.MODEL_PHASE_FAILED


def spec(name: str, directory: str = "", **fields: Any) -> model_pb2.ModelSpec:
    source = model_pb2.ModelSource(directory=directory or f"/models/{name}")
    return model_pb2.ModelSpec(name=name, source=source, **({"ttft_s": 2, "tbt_s": 0.1} | fields))


A = spec("tiny-a", "/models/a")
B_SOURCE = model_pb2.ModelSource(hub=model_pb2.HubSource(repository="org/b", revision="main"))
B = model_pb2.ModelSpec(name="tiny-b", source=B_SOURCE, ttft_s=2, tbt_s=0.1)
C = spec("tiny-c")


async def test_admin_is_served_on_its_own_address_alone_and_nothing_else_is_there(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        wrong: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(await stack.channel())
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await wrong.SetTenants(admin_pb2.SetTenantsRequest())
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert (await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())).incarnation
    async with serve(brain, admin_listen=None) as stack:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_status_has_a_port_of_its_own_on_this_machine_where_nothing_else_can_be_called(
    serve: Any, brain: Any, folder: Path
) -> None:
    target = f"unix:{folder}/status.sock"
    async with serve(brain, status_listen=target), plain_channel(target) as channel:
        frontend: gateway_pb2_grpc.FrontendAsyncStub = gateway_pb2_grpc.FrontendStub(channel)
        status = await anext(aiter(frontend.Status(gateway_pb2.StatusRequest())))
        assert status.pool == "test"
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await anext(aiter(frontend.Serve()))
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_status_is_not_served_to_other_machines(serve: Any, brain: Any) -> None:
    with pytest.raises(ListenError, match=r"status_listen: .* is reached from other machines"):
        async with serve(brain, status_listen="0.0.0.0:7003"):
            pass


async def set_catalog(stack: Any, *models: model_pb2.ModelSpec, **options: Any) -> admin_pb2.SetCatalogReply:
    request = admin_pb2.SetCatalogRequest(models=models, **options)
    return await (await stack.admin()).SetCatalog(request)


async def next_catalog(sidecar: Any) -> list[str]:
    """Names in the next Catalog command; commands before it are skipped."""
    while (command := await sidecar.next()).WhichOneof("body") != "catalog":
        pass
    return [model.name for model in command.catalog.models]


async def catalog_of(gateway: Any, *names: str) -> gateway_pb2.CatalogStatus:
    """The first catalog from now on that has these models."""
    while True:
        status: gateway_pb2.CatalogStatus = await gateway.next("catalog")
        if {model.spec.name for model in status.models} == set(names):
            return status


async def test_a_new_catalog_reaches_core_sidecars_and_gateways_and_reports_its_changes(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar, gateway = await stack.sidecar(), await stack.gateway()
        slow_b = model_pb2.ModelSpec()
        slow_b.CopyFrom(B)
        slow_b.tbt_s = 0.5
        reply = await set_catalog(stack, slow_b, C)
        assert (list(reply.added), list(reply.changed), list(reply.removed)) == (["tiny-c"], ["tiny-b"], ["tiny-a"])
        changed = brain.all_of(events.CatalogChanged)[-1]
        assert {model.name: model.slo.tbt_s for model in changed.models} == {"tiny-b": 0.5, "tiny-c": 0.1}
        while (names := await next_catalog(sidecar)) != ["tiny-b", "tiny-c"]:
            assert "tiny-b" in names
        status = await catalog_of(gateway, "tiny-b", "tiny-c")
        assert {model.spec.name: model.spec.tbt_s for model in status.models} == {"tiny-b": 0.5, "tiny-c": 0.1}


async def test_the_hold_for_starts_changes_without_a_restart(serve: Any) -> None:
    core = Scheduler()
    async with serve(core) as stack:
        await set_catalog(stack, A, start_s=600.0)
        assert core.config.start_s == 600.0
        await set_catalog(stack, A)  # of an older operator, or of `aegaeon apply`
        assert core.config.start_s == 600.0
        await set_catalog(stack, A, start_s=0.0)
        assert core.config.start_s == 0.0


async def test_the_engines_that_the_pool_is_to_have_reach_the_core(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        for _ in range(2):
            await set_catalog(stack, A, engines=admin_pb2.Engines(instances=["engine-0"]))
        await set_catalog(stack, A)  # of an older operator, or of `aegaeon apply`
        await set_catalog(stack, A, engines=admin_pb2.Engines())
        assert [event.instances for event in brain.all_of(events.EnginesExpected)] == [("engine-0",), None, ()]


async def test_tier_and_weight_of_a_model_reach_the_core(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        batch = model_pb2.ModelSpec(name="tiny-b", source=B_SOURCE, ttft_s=2, tbt_s=0.1, tier=model_pb2.TIER_BATCH)
        reply = await set_catalog(stack, A, batch, spec("tiny-c", weight=3))
        assert list(reply.removed) == []
        terms = {model.name: model.terms for model in brain.all_of(events.CatalogChanged)[-1].models}
        assert terms == {"tiny-a": Terms(), "tiny-b": Terms(Tier.BATCH), "tiny-c": Terms(weight=3)}


async def test_an_unchanged_catalog_is_not_sent_again(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        reply = await set_catalog(stack, A, B)
        assert reply == admin_pb2.SetCatalogReply()
        assert len(brain.all_of(events.CatalogChanged)) == 1


async def test_a_sidecar_gets_the_catalog_again_to_retry_failed_models(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        await set_catalog(stack, A, B, retry=True)
        catalog = (await sidecar.next()).catalog
        assert [model.name for model in catalog.models] == ["tiny-a", "tiny-b"]
        assert catalog.retry
        await set_catalog(stack, A, B, C)
        assert not (await sidecar.next()).catalog.retry


async def test_the_source_of_a_failed_model_may_be_changed(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        await sidecar.report(model=model_pb2.ModelState(model="tiny-a", phase=FAILED, reason="no such folder"))
        await brain.wait_for(events.ModelReported)
        repaired = spec("tiny-a", "/models/there")
        assert list((await set_catalog(stack, repaired, B)).changed) == ["tiny-a"]
        command = await sidecar.next()
        assert command.catalog.models[0].source.directory == "/models/there"
        status = await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())
        assert {m.spec.name: m.phase for m in status.catalog.models}["tiny-a"] == model_pb2.MODEL_PHASE_UNSPECIFIED
        former, *_, last = (event.models[0].identity for event in brain.all_of(events.CatalogChanged))
        assert former != last


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ([A, A], "more than once"),
        ([A, spec("")], "without a name"),
        ([model_pb2.ModelSpec(name="tiny-a", ttft_s=1, tbt_s=1)], "no source"),
        ([spec("tiny-a", ttft_s=0)], "ttft_s"),
        ([spec("tiny-a", tbt_s=float("inf"))], "tbt_s"),
    ],
)
async def test_an_invalid_model_is_refused_alone_and_serving_continues(
    serve: Any, brain: Any, wrong: list[model_pb2.ModelSpec], word: str
) -> None:
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        reply = await set_catalog(stack, *wrong, B, C)
        assert [word in note.reason for note in reply.refused] == [True]
        assert (list(reply.added), list(reply.removed)) == (["tiny-c"], [])
        await catalog_of(gateway, "tiny-a", "tiny-b", "tiny-c")
        status = await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())
        assert status.refused == reply.refused
        assert not (await set_catalog(stack, A, B, C)).refused
        assert not (await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())).refused


def accepting(brain: Any) -> None:
    brain.script[events.Submitted] = lambda e: [commands.Accept(e.gateway, e.seq)]
    brain.script[events.Cancelled] = lambda e: [commands.SequenceEnded(e.seq, 1)]


async def test_a_withdrawn_model_drains_and_accepts_no_new_requests(serve: Any, brain: Any) -> None:
    accepting(brain)
    async with serve(brain) as stack:
        sidecar, gateway = await stack.sidecar(), await stack.gateway()
        await gateway.submit("r1")
        await gateway.next("accepted")
        assert list((await set_catalog(stack, B, drain_s=60)).removed) == ["tiny-a"]
        await catalog_of(gateway, "tiny-b")
        await gateway.submit("r2")
        rejected = await gateway.next("rejected")
        assert (rejected.request, rejected.code) == ("r2", gateway_pb2.REJECT_CODE_UNKNOWN_MODEL)
        await gateway.submit("r1", epoch=2)  # what it was asked before goes on, also after a loss
        await gateway.next("accepted")
        status = await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())
        assert list(status.withdrawing) == ["tiny-a"]
        assert len(brain.all_of(events.CatalogChanged)) == 1
        brain.script[events.Cancelled] = lambda e: [commands.SequenceEnded(e.seq, 2)]
        await gateway.send(cancel=gateway_pb2.CancelRequest(request="r1"))
        assert await next_catalog(sidecar) == ["tiny-b"]
        assert [m.name for m in brain.all_of(events.CatalogChanged)[-1].models] == ["tiny-b"]


async def test_a_withdrawn_model_added_again_in_time_keeps_its_requests(serve: Any, brain: Any) -> None:
    accepting(brain)
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit("r1")
        await gateway.next("accepted")
        await set_catalog(stack, B, drain_s=60)
        assert list((await set_catalog(stack, A, B)).added) == ["tiny-a"]
        await gateway.submit("r2")
        assert (await gateway.next("accepted")).request == "r2"
        assert not [e for e in brain.all_of(events.CatalogChanged) if len(e.models) < 2]


async def test_requests_of_a_withdrawn_model_end_with_an_error_after_the_drain_timeout(
    serve: Any, configured: Any
) -> None:
    async with serve(Scheduler(core_config(load_config(configured())))) as stack:
        sidecar, gateway = await stack.sidecar(), await stack.gateway()
        await gateway.submit("r1")
        await gateway.next("accepted")
        await set_catalog(stack, B, drain_s=0.15)
        rejected = await gateway.next("rejected")
        assert (rejected.request, rejected.code) == ("r1", gateway_pb2.REJECT_CODE_UNKNOWN_MODEL)
        assert "withdrawn" in rejected.reason
        assert await next_catalog(sidecar) == ["tiny-b"]
        status = await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())
        assert not status.withdrawing
        assert not status.pool.sequences


# ---- tenants --------------------------------------------------------------------------------------------------------


def tenants(*names: str) -> gateway_pb2.Tenants:
    return gateway_pb2.Tenants(
        tenants=[
            gateway_pb2.Tenant(name=name, models=["tiny-a"], key_sha256=[hashlib.sha256(name.encode()).hexdigest()])
            for name in names
        ]
    )


async def test_tenants_reach_attached_gateways_and_those_that_attach_later(serve: Any, brain: Any) -> None:
    async with serve(brain, tenants={"open_models": ["tiny-b"]}) as stack:
        here = await stack.gateway("here")
        assert list((await here.next("tenants")).open_models) == ["tiny-b"]
        api = await stack.admin()
        assert (await api.SetTenants(admin_pb2.SetTenantsRequest(tenants=tenants("red")))).changed
        assert not (await api.SetTenants(admin_pb2.SetTenantsRequest(tenants=tenants("red")))).changed
        later = await stack.gateway("later")
        for gateway in (here, later):
            assert [tenant.name for tenant in (await gateway.next("tenants")).tenants] == ["red"]
        status = await api.Status(admin_pb2.AdminStatusRequest())
        assert {(g.gateway, g.attached) for g in status.gateways} == {("here", True), ("later", True)}
        assert status.tenants_known


@pytest.mark.parametrize(
    ("document", "word"),
    [
        (gateway_pb2.Tenants(tenants=[gateway_pb2.Tenant(name="a", key_sha256=["key"])]), "SHA-256"),
        (gateway_pb2.Tenants(tenants=[gateway_pb2.Tenant(name="a"), gateway_pb2.Tenant(name="a")]), "unique"),
        (
            gateway_pb2.Tenants(tenants=[gateway_pb2.Tenant(name=n, key_sha256=["0" * 64]) for n in "ab"]),
            "the same key",
        ),
    ],
)
async def test_invalid_tenants_are_refused(serve: Any, brain: Any, document: gateway_pb2.Tenants, word: str) -> None:
    async with serve(brain) as stack:
        with pytest.raises(grpc.aio.AioRpcError, match=word) as error:
            await (await stack.admin()).SetTenants(admin_pb2.SetTenantsRequest(tenants=document))
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_tenants_of_the_configuration_file_are_checked_alike() -> None:
    with pytest.raises(ConfigError, match=r"tenants: .*no-keys"):
        configured({"no-keys": []})
    with pytest.raises(ConfigError, match=r"SHA-256.*unique"):
        configured({"tenants": [{"name": "a", "key_sha256": ["key"]}, {"name": "a"}]})


async def test_every_run_of_a_scheduler_has_its_own_id(serve: Any, brain: Any) -> None:
    seen = set()
    for _ in range(2):
        async with serve(brain) as stack:
            await stack.sidecar(memory=engine_pb2.Memory())
            seen.add((await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())).incarnation)
    assert len(seen) == 2


async def test_a_model_that_some_engines_cannot_serve_is_served_and_the_reason_shown(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        first, second, gateway = await stack.sidecar("e0"), await stack.sidecar("e1"), await stack.gateway()
        states = {
            first: model_pb2.ModelState(model="tiny-a", phase=CACHED),
            second: model_pb2.ModelState(model="tiny-a", phase=FAILED, reason="tiny-a: file.safetensors: missing"),
        }
        for sidecar, state in states.items():
            await sidecar.report(model=state)
        while (model := (await gateway.next("catalog")).models[0]).phase != CACHED or not model.reason:
            pass
        assert model.reason == "1 of 2 engines cannot serve it: tiny-a: file.safetensors: missing"
        await first.report(model=states[second])
        while (model := (await gateway.next("catalog")).models[0]).phase != FAILED:
            pass
        assert model.reason == "tiny-a: file.safetensors: missing"


async def test_tokenizer_errors_of_every_gateway_are_in_the_catalog_for_operators(serve: Any, brain: Any) -> None:
    async def until(phase: model_pb2.ModelPhase.ValueType, reason: str) -> None:
        async with asyncio.timeout(60):
            while True:
                [model, _] = (await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())).catalog.models
                if model.phase == phase and reason in model.reason and bool(reason) == bool(model.reason):
                    return

    async with serve(brain) as stack:
        await stack.sidecar(models=[model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_CACHED)])
        one, two = await stack.gateway("gw-1"), await stack.gateway("gw-2")
        await one.send(text=gateway_pb2.TextStatus(model="tiny-a", reason="too large"))
        await until(model_pb2.MODEL_PHASE_CACHED, "gateway gw-1 cannot use its tokenizer")
        await two.send(text=gateway_pb2.TextStatus(model="tiny-a", reason="too large"))
        await until(model_pb2.MODEL_PHASE_FAILED, "too large")
        await one.send(text=gateway_pb2.TextStatus(model="tiny-a"))
        await two.send(text=gateway_pb2.TextStatus(model="tiny-a"))
        await until(model_pb2.MODEL_PHASE_CACHED, "")


async def test_operators_learn_which_gateways_cannot_use_redis_and_why(serve: Any, brain: Any) -> None:
    async def until(away: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while True:
                gateways = (await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())).gateways
                if {each.gateway: each.redis_away for each in gateways} == away:
                    return

    async with serve(brain) as stack:
        first, _ = await stack.gateway("gw-1"), await stack.gateway("gw-2")
        await first.send(redis=gateway_pb2.RedisStatus(away="Timeout connecting to server"))
        await until({"gw-1": "Timeout connecting to server", "gw-2": ""})
        await first.send(redis=gateway_pb2.RedisStatus())
        await until({"gw-1": "", "gw-2": ""})
