"""A name that is to stand for another model: over real streams, with engines and gateways that are played here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aegaeon_proto.v1 import admin_pb2, engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.config import core_config, load_config
from aegaeon_scheduler.core import events
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.service import rollouts
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.identity import identified

CACHED = model_pb2.MODEL_PHASE_CACHED
FAILED = model_pb2.MODEL_PHASE_FAILED
FETCHING = model_pb2.MODEL_PHASE_FETCHING
FOOTPRINT = model_pb2.Footprint(
    weight_bytes=1 << 20, weight_slabs=1, kv_shape="s", kv_block_bytes=4096, kv_block_tokens=16, max_model_len=256
)


def spec(directory: str = "/models/a", **more: Any) -> model_pb2.ModelSpec:
    source = model_pb2.ModelSource(directory=directory)
    fields = {"ttft_s": 2, "tbt_s": 0.1, "weight": 1} | more
    return identified(model_pb2.ModelSpec(name="tiny-a", source=source, **fields))


OLD, NEW = spec(), spec("/models/other")
REATTACH_GRACE_OVER = rollouts.Rollouts.reattach_grace_over  # as it is


@pytest.fixture(autouse=True)
def reattach_grace_over(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Whether all that outlived an earlier scheduler has come: so it is, where a test does not clear it."""
    event = asyncio.Event()
    event.set()
    monkeypatch.setattr(rollouts.Rollouts, "reattach_grace_over", property(lambda _: event.is_set()))
    return event


@pytest.fixture
def core(configured: Any) -> Scheduler:
    """The real one."""
    return Scheduler(core_config(load_config(configured())))


async def change(stack: Any, *models: model_pb2.ModelSpec, drain_s: float = 60.0) -> admin_pb2.SetCatalogReply:
    return await (await stack.admin()).SetCatalog(admin_pb2.SetCatalogRequest(models=models, drain_s=drain_s))


async def status(stack: Any) -> admin_pb2.AdminStatus:
    return await (await stack.admin()).Status(admin_pb2.AdminStatusRequest())


async def catalog_with(sidecar: Any, *names: str) -> dict[str, model_pb2.ModelSpec]:
    """The next Catalog command with just these names; commands before it are skipped."""
    while True:
        command = await sidecar.next()
        models = {model.name: model for model in command.catalog.models}
        if command.WhichOneof("body") == "catalog" and models.keys() == set(names):
            return models


async def says(sidecar: Any, model: model_pb2.ModelSpec, phase: Any = CACHED, reason: str = "") -> None:
    """The engine reports on a model as the catalog defines it."""
    footprint = FOOTPRINT if phase == CACHED else None
    state = model_pb2.ModelState(
        model=model.name, identity=model.identity, phase=phase, reason=reason, footprint=footprint
    )
    await sidecar.report(model=state)


async def shown(gateway: Any, phase: Any, directory: str) -> None:
    """Until a gateway sees tiny-a so."""
    while True:
        models = (await gateway.next("catalog")).models
        if [(model.phase, model.spec.source.directory) for model in models] == [(phase, directory)]:
            return


def running(**fields: Any) -> dict[str, Any]:
    """Hello of an engine that has the former model."""
    state = model_pb2.ModelState(model="tiny-a", identity=OLD.identity, phase=CACHED, footprint=FOOTPRINT)
    return {"models": [state], "catalog": [OLD], "resident": ["tiny-a"], **fields}


HELD = engine_pb2.HeldSequence(
    seq=model_pb2.SeqId(request="r1"), epoch=1, model="tiny-a", prompt_tokens=3, output_tokens=2, kv_tokens=4,
    place=engine_pb2.KV_PLACE_DEVICE,
)  # fmt: skip
STAGED = f"tiny-a~{NEW.identity}"
OTHER = {"name": "tiny-a", "source": {"directory": "/models/other"}, "ttft_s": 2, "tbt_s": 0.1}  # NEW, configured


def outlived() -> engine_pb2.Hello:
    """Of an engine that runs the former model for an earlier scheduler's request."""
    memory = engine_pb2.Memory(slabs_free=60, host_slabs_free=64)
    return engine_pb2.Hello(
        instance="e", incarnation="1", node="n", role=engine_pb2.ROLE_UNIFIED, slabs=64, host_slabs=64,
        slab_bytes=1 << 20, max_batch=8, memory=memory, **running(held=[HELD]),
    )  # fmt: skip


async def command(sidecar: Any, kind: str) -> Any:
    """The next command of this kind; loads before it succeed."""
    while (one := await sidecar.next()).WhichOneof("body") != kind:
        if one.WhichOneof("body") == "load":
            memory = engine_pb2.Memory(slabs_free=60, host_slabs_free=64)
            await sidecar.report(done=engine_pb2.Done(id=one.id, seconds=0.01, memory=memory))
    return one


async def finish(sidecar: Any, turn: engine_pb2.Command, epoch: int = 1) -> None:
    progress = engine_pb2.SeqProgress(
        seq=model_pb2.SeqId(request="r1"), epoch=epoch, output_tokens=5, kv_tokens=7,
        finish=model_pb2.FINISH_REASON_LENGTH,
    )  # fmt: skip
    memory = engine_pb2.Memory(slabs_free=60, host_slabs_free=64)
    step = engine_pb2.StepDone(turn=turn.id, progress=[progress], steps=5, memory=memory, end=True)
    await sidecar.report(step_done=step)


def test_sequences_of_an_earlier_scheduler_get_a_grace_period_from_the_first_peer_on(
    brain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts.Rollouts, "reattach_grace_over", REATTACH_GRACE_OVER)
    clock = iter((1000.0, 1009.9, 1010.0)).__next__  # no peer attached for long
    changes = rollouts.Rollouts(Catalog((), lambda: None), Driver(brain, clock))
    assert [changes.reattach_grace_over for _ in range(3)] == [False, False, True]


async def test_a_changed_model_is_prepared_while_the_former_one_drains(serve: Any, core: Scheduler) -> None:
    async with serve(core) as stack:
        sidecar, gateway = await stack.sidecar(models=running()["models"]), await stack.gateway()
        await gateway.submit("r1", identity=OLD.identity)
        turn = await command(sidecar, "turn")
        assert list((await change(stack, NEW)).changed) == ["tiny-a"]
        sent = await catalog_with(sidecar, "tiny-a", STAGED)
        assert sent["tiny-a"].identity == OLD.identity
        assert "0 of 1 engines have it" in (await status(stack)).changing[0].reason
        await says(sidecar, sent[STAGED])
        await shown(gateway, FETCHING, "/models/other")  # new requests wait there
        assert [note.model for note in (await status(stack)).changing] == ["tiny-a"]
        await finish(sidecar, turn)
        sent = await catalog_with(sidecar, "tiny-a")
        assert sent["tiny-a"].identity == NEW.identity
        await says(sidecar, OLD)  # its last word on the former one was on its way
        await says(sidecar, sent["tiny-a"])
        await shown(gateway, CACHED, "/models/other")
        await gateway.submit("r2", identity=NEW.identity)
        assert (await command(sidecar, "load")).load.identity == NEW.identity
        assert not (await status(stack)).changing
        core.check()


async def test_engines_learn_of_a_change_that_comes_due_with_a_list_that_changes_nothing(
    serve: Any, core: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an operator sends it whose certificate is new."""
    async with serve(core) as stack:
        sidecar, gateway = await stack.sidecar(models=running()["models"]), await stack.gateway()
        monkeypatch.setattr("aegaeon_scheduler.service.changes._LOOK_S", 3600.0)  # the list comes between two looks
        await change(stack, NEW)
        sent = await catalog_with(sidecar, "tiny-a", STAGED)
        await says(sidecar, sent[STAGED])
        async with asyncio.timeout(60):
            while "1 of 1 engines have it" not in (await status(stack)).changing[0].reason:
                pass
        assert not (await change(stack, NEW)).changed
        async with asyncio.timeout(60):
            sent = await catalog_with(sidecar, "tiny-a")
        assert sent["tiny-a"].identity == NEW.identity
        await says(sidecar, sent["tiny-a"])
        await shown(gateway, CACHED, "/models/other")


async def test_a_change_that_no_engine_can_prepare_is_refused_and_the_former_model_keeps_serving(
    serve: Any, core: Scheduler
) -> None:
    async with serve(core) as stack:
        sidecar, gateway = await stack.sidecar(models=running()["models"]), await stack.gateway()
        await change(stack, NEW)
        sent = await catalog_with(sidecar, "tiny-a", STAGED)
        await says(sidecar, sent[STAGED], FAILED, f"{STAGED}: config.json: missing")
        async with asyncio.timeout(60):
            while not (notes := (await status(stack)).refused):
                pass
        assert [(note.model, note.reason.count(STAGED)) for note in notes] == [("tiny-a", 0)]
        assert "tiny-a: config.json: missing" in notes[0].reason
        await gateway.submit("r1", identity=OLD.identity)
        assert (await command(sidecar, "load")).load.identity == OLD.identity
        assert list((await change(stack, OLD)).changed) == ["tiny-a"]
        await catalog_with(sidecar, "tiny-a")
        assert not (await status(stack)).refused


async def test_requests_not_drained_in_time_are_refused_and_never_continue_on_the_new_model(
    serve: Any, core: Scheduler
) -> None:
    async with serve(core) as stack:
        sidecar, gateway = await stack.sidecar(models=running()["models"]), await stack.gateway()
        await gateway.submit("r1", identity=OLD.identity)
        await command(sidecar, "turn")
        await change(stack, NEW, drain_s=0.1)
        await says(sidecar, (await catalog_with(sidecar, "tiny-a", STAGED))[STAGED])
        assert (await gateway.next("rejected")).code == gateway_pb2.REJECT_CODE_CHANGED
        core.check()


async def test_credentials_and_objectives_are_not_part_of_a_models_identity(serve: Any, brain: Any) -> None:
    hub = [model_pb2.HubSource(repository="org/b", revision="main", credentials_file=file) for file in ("", "/token")]
    specs = [
        model_pb2.ModelSpec(name="tiny-b", source=model_pb2.ModelSource(hub=one), ttft_s=2, tbt_s=tbt_s)
        for one, tbt_s in zip(hub, (0.1, 0.2), strict=True)
    ]
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        assert list((await change(stack, OLD, specs[1])).changed) == ["tiny-b"]
        sent = await catalog_with(sidecar, "tiny-a", "tiny-b")
        assert sent["tiny-b"].source.hub.credentials_file == "/token"
        first, last = (brain.all_of(events.CatalogChanged)[i].models for i in (0, -1))
        assert {model.identity for model in first} == {model.identity for model in last}


async def test_a_scheduler_that_starts_with_another_catalog_drains_running_sequences_first(
    serve: Any, core: Scheduler, reattach_grace_over: asyncio.Event
) -> None:
    """The gateway is there before the engine; the prompt of its request is of the former model."""
    reattach_grace_over.clear()
    async with serve(core, models=[OTHER]) as stack:
        gateway = await stack.gateway()
        choice = gateway_pb2.Choice(epoch=2, prefix=[40])
        await gateway.submit("r1", identity=OLD.identity, choices=[choice])
        sidecar = await stack.attach()
        await sidecar.report(hello=outlived())
        sent = await catalog_with(sidecar, "tiny-a", STAGED)
        assert sent["tiny-a"].identity == OLD.identity
        turn = await command(sidecar, "turn")  # without a load, and without a prefill: it goes on where it was
        assert (len(turn.turn.decode), len(turn.turn.prefill)) == (1, 0)
        await says(sidecar, sent[STAGED])
        reattach_grace_over.set()
        await shown(gateway, FETCHING, "/models/other")
        await finish(sidecar, turn, epoch=2)
        sent = await catalog_with(sidecar, "tiny-a")
        assert sent["tiny-a"].identity == NEW.identity
        await says(sidecar, sent["tiny-a"], FETCHING)
        await says(sidecar, sent["tiny-a"])
        await gateway.submit("r2", identity=NEW.identity)
        assert (await command(sidecar, "load")).load.identity == NEW.identity
        core.check()


async def test_a_request_that_came_before_the_engines_does_not_hide_what_they_run(
    serve: Any, core: Scheduler, reattach_grace_over: asyncio.Event
) -> None:
    """Its prompt is of what the new scheduler said that the name stands for."""
    reattach_grace_over.clear()
    async with serve(core, models=[OTHER]) as stack:
        gateway = await stack.gateway()
        choice = gateway_pb2.Choice(epoch=2, prefix=[40])
        await gateway.submit("r1", identity=OLD.identity, choices=[choice])
        await gateway.submit("r2", identity=NEW.identity)
        assert (await gateway.next("accepted")).request == "r2"
        sidecar = await stack.attach()
        await sidecar.report(hello=outlived())
        assert (await catalog_with(sidecar, "tiny-a", STAGED))["tiny-a"].identity == OLD.identity
        rejected = await gateway.next("rejected")  # to be made anew
        assert (rejected.request, rejected.code) == ("r2", gateway_pb2.REJECT_CODE_CHANGED)
        await shown(gateway, CACHED, "/models/a")
        assert [one.request for one in (await command(sidecar, "turn")).turn.decode] == ["r1"]
        core.check()


async def test_a_change_that_engines_have_prepared_waits_for_gateways_that_outlived_the_scheduler(
    serve: Any, core: Scheduler, reattach_grace_over: asyncio.Event
) -> None:
    """The earlier scheduler had it prepared; without a gateway's streams the former model seems unused."""
    reattach_grace_over.clear()
    async with serve(core, models=[OTHER]) as stack:
        sidecar = await stack.attach()
        await sidecar.report(hello=outlived())
        await says(sidecar, (await catalog_with(sidecar, "tiny-a", STAGED))[STAGED])
        async with asyncio.timeout(60):
            while "1 of 1 engines have it" not in (await status(stack)).changing[0].reason:
                pass
        await asyncio.sleep(0.3)  # a switch that must not come has no event; it is looked at every 0.1 s
        gateway = await stack.gateway()
        choice = gateway_pb2.Choice(epoch=2, prefix=[40])
        await gateway.submit("r1", identity=OLD.identity, choices=[choice])
        turn = await command(sidecar, "turn")
        reattach_grace_over.set()
        await shown(gateway, FETCHING, "/models/other")
        await finish(sidecar, turn, epoch=2)
        assert (await catalog_with(sidecar, "tiny-a"))["tiny-a"].identity == NEW.identity


async def test_an_engine_that_reattaches_with_a_names_former_model_does_not_hold_the_new_one(
    serve: Any, core: Scheduler
) -> None:
    """Its weights and sequences are of another model: a turn on them would fail, or answer for the wrong one."""
    async with serve(core) as stack:
        held = engine_pb2.HeldSequence()
        held.CopyFrom(HELD)
        former = model_pb2.ModelState(model="tiny-a", identity="former", phase=CACHED, footprint=FOOTPRINT)
        catalog = [model_pb2.ModelSpec(name="tiny-a", identity="former")]
        sidecar = await stack.sidecar(models=[former], catalog=catalog, resident=["tiny-a"], held=[held])
        gateway = await stack.gateway()
        assert (await status(stack)).catalog.models[0].phase == 0
        await gateway.submit("r1", identity=OLD.identity)
        await says(sidecar, OLD, FETCHING)
        await says(sidecar, OLD)
        first = await sidecar.next()
        assert (first.WhichOneof("body"), first.load.identity) == ("load", OLD.identity)


async def test_a_prompt_of_a_names_former_model_is_refused_once_no_engine_can_have_it(
    serve: Any, brain: Any, reattach_grace_over: asyncio.Event
) -> None:
    reattach_grace_over.clear()
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit("r1", identity=NEW.identity)
        await gateway.submit("r2", choices=[gateway_pb2.Choice(epoch=0)])
        assert (await gateway.next("rejected")).request == "r2"  # so the other one has come, and waits
        reattach_grace_over.set()
        rejected = await gateway.next("rejected")
        assert (rejected.request, rejected.code) == ("r1", gateway_pb2.REJECT_CODE_CHANGED)
        assert not brain.all_of(events.Submitted)


async def test_a_prompt_that_waits_for_its_model_starts_an_engine_while_its_client_reads(
    serve: Any, brain: Any, reattach_grace_over: asyncio.Event
) -> None:
    reattach_grace_over.clear()
    async with asyncio.timeout(60), serve(brain) as stack:
        demand = asyncio.ensure_future((await stack.admin()).AwaitDemand(admin_pb2.AwaitDemandRequest()))
        gateway = await stack.gateway()
        choices = [gateway_pb2.Choice(choice=number, epoch=1) for number in range(2)]
        await gateway.submit("r1", identity=NEW.identity, choices=choices)
        await gateway.send(cancel=gateway_pb2.CancelRequest(request="r1", choices=[0]))
        await gateway.submit("r2", choices=[gateway_pb2.Choice(epoch=0)])
        assert (await gateway.next("rejected")).request == "r2"  # so the others have come
        assert not demand.done()
        await change(stack, NEW)
        await brain.wait_for(events.Submitted)
        assert [(one.seq.request, one.seq.choice) for one in brain.all_of(events.Submitted)] == [("r1", 1)]
        await demand


async def test_a_name_removed_and_added_as_another_model_accepts_no_requests_for_the_former_one(
    serve: Any, core: Scheduler
) -> None:
    """As by `kubectl replace --force`."""
    async with serve(core) as stack:
        sidecar, gateway = await stack.sidecar(models=running()["models"]), await stack.gateway()
        await gateway.submit("r1", identity=OLD.identity)
        turn = await command(sidecar, "turn")
        await change(stack)
        assert list((await change(stack, NEW)).added) == ["tiny-a"]
        await shown(gateway, FETCHING, "/models/other")
        await finish(sidecar, turn)
        while (await catalog_with(sidecar, "tiny-a"))["tiny-a"].identity != NEW.identity:
            pass
