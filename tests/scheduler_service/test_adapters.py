"""Adapters are names of their own to gateways, and their base's sequences to core and sidecars."""

from __future__ import annotations

from typing import Any

import pytest

from aegaeon_proto.v1 import admin_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import CommandId, InstanceId
from aegaeon_scheduler.service import rollouts

CACHED, FAILED = model_pb2.MODEL_PHASE_CACHED, model_pb2.MODEL_PHASE_FAILED
FETCHING = model_pb2.MODEL_PHASE_FETCHING


def adapter(name: str, directory: str = "") -> model_pb2.AdapterSpec:
    return model_pb2.AdapterSpec(name=name, source=model_pb2.ModelSource(directory=directory or f"/adapters/{name}"))


def base(*adapters: model_pb2.AdapterSpec, directory: str = "/models/a") -> model_pb2.ModelSpec:
    source = model_pb2.ModelSource(directory=directory)
    return model_pb2.ModelSpec(name="tiny-a", source=source, ttft_s=2, tbt_s=0.1, adapters=adapters)


async def set_catalog(stack: Any, *models: model_pb2.ModelSpec) -> admin_pb2.SetCatalogReply:
    return await (await stack.admin()).SetCatalog(admin_pb2.SetCatalogRequest(models=models))


async def status_of(gateway: Any, name: str, phase: int) -> gateway_pb2.ModelStatus:
    """The name once it has the phase."""
    while True:
        for model in (await gateway.next("catalog")).models:
            if model.spec.name == name and model.phase == phase:
                return model


async def report(sidecar: Any, spec: model_pb2.ModelSpec, **adapters: tuple[int, str]) -> None:
    states = [
        model_pb2.AdapterState(adapter=one.name, phase=phase, reason=reason, identity=one.identity)
        for one in spec.adapters
        for phase, reason in [adapters[one.name]]
    ]
    footprint = model_pb2.Footprint(weight_slabs=1, kv_shape="s", kv_block_bytes=1, kv_block_tokens=1, max_model_len=99)
    state = model_pb2.ModelState(model=spec.name, phase=CACHED, identity=spec.identity, footprint=footprint)
    state.adapters.extend(states)
    await sidecar.report(model=state)


def opening(event: Any) -> list[commands.Command]:
    """The engine gets what was submitted."""
    body = commands.Open(event.seq, event.epoch, event.model)
    return [
        commands.Accept(event.gateway, event.seq),
        commands.Send(InstanceId("decode-0"), CommandId(1), body, (), "it was submitted"),
    ]


async def sent(sidecar: Any, kind: str) -> Any:
    """The next command of this kind; others are skipped."""
    while (command := await sidecar.next()).WhichOneof("body") != kind:
        pass
    return getattr(command, kind)


async def sent_catalog(sidecar: Any) -> model_pb2.ModelSpec:
    """The base as the next catalog has it."""
    found: model_pb2.ModelSpec = (await sent(sidecar, "catalog")).models[0]
    return found


async def test_an_adapter_is_a_name_of_its_own_whose_requests_are_those_of_its_base(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = opening
    async with serve(brain) as stack:
        sidecar, gateway = await stack.sidecar(), await stack.gateway()
        await set_catalog(stack, base(adapter("poet"), adapter("broken")))
        spec = await sent_catalog(sidecar)
        assert [one.name for one in spec.adapters] == ["poet", "broken"]
        assert len({one.identity for one in spec.adapters}) == 2
        await report(sidecar, spec, poet=(FETCHING, ""), broken=(FAILED, "broken: its rank is 64"))
        broken = await status_of(gateway, "broken", FAILED)
        assert (broken.parent, broken.reason) == ("tiny-a", "broken: its rank is 64")
        await report(sidecar, spec, poet=(CACHED, ""), broken=(FAILED, "broken: its rank is 64"))
        poet = await status_of(gateway, "poet", CACHED)
        assert (poet.parent, poet.spec.source.directory, poet.wait) == ("tiny-a", "/models/a", False)
        assert poet.footprint == model_pb2.Footprint(max_model_len=99)  # its base's memory counts once
        await gateway.submit("r1", model="poet", identity=poet.spec.identity)
        await gateway.next("accepted")
        assert brain.all_of(events.Submitted)[0].model == "tiny-a"
        opened = await sent(sidecar, "open")
        assert (opened.model, opened.adapter) == ("tiny-a", "poet")
        assert opened.adapter_identity == spec.adapters[0].identity
        assert [model.name for model in brain.all_of(events.CatalogChanged)[-1].models] == ["tiny-a"]


async def test_a_prompt_for_what_an_adapter_was_before_is_made_anew(
    serve: Any, brain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "REATTACH_GRACE_S", 0.0)  # no engine of an earlier scheduler is awaited
    brain.script[events.Submitted] = opening
    async with serve(brain) as stack:
        sidecar, gateway = await stack.sidecar(), await stack.gateway()
        await set_catalog(stack, base(adapter("poet")))
        spec = await sent_catalog(sidecar)
        await report(sidecar, spec, poet=(CACHED, ""))
        before = await status_of(gateway, "poet", CACHED)
        reply = await set_catalog(stack, base(adapter("poet", "/adapters/other")))
        assert list(reply.changed) == ["tiny-a"]
        now = await status_of(gateway, "poet", FETCHING)
        assert now.spec.identity != before.spec.identity
        assert now.wait
        assert (await sent_catalog(sidecar)).identity == spec.identity  # its base is as it was
        await gateway.submit("r1", model="poet", identity=before.spec.identity)
        assert (await gateway.next("rejected")).code == gateway_pb2.REJECT_CODE_CHANGED


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (adapter("tiny-a"), "its name is taken"),
        (adapter("poet"), "its name is taken"),
        (model_pb2.AdapterSpec(name="odd"), "no source"),
    ],
)
async def test_an_adapter_that_makes_no_sense_is_refused_alone(
    serve: Any, brain: Any, wrong: model_pb2.AdapterSpec, word: str
) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        reply = await set_catalog(stack, base(adapter("poet"), wrong))
        assert [word in note.reason for note in reply.refused] == [True]
        assert [one.name for one in (await sent_catalog(sidecar)).adapters] == ["poet"]


async def test_a_base_that_changes_is_prepared_without_its_adapters(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar, gateway = await stack.sidecar(), await stack.gateway()
        await set_catalog(stack, base(adapter("poet")))
        await report(sidecar, await sent_catalog(sidecar), poet=(CACHED, ""))
        await status_of(gateway, "poet", CACHED)
        await set_catalog(stack, base(adapter("poet"), directory="/models/other"))
        while len(catalog := (await sent(sidecar, "catalog")).models) < 2:
            pass
        assert [(model.source.directory, len(model.adapters)) for model in catalog] == [
            ("/models/a", 1),
            ("/models/other", 0),
        ]


async def test_an_adapter_that_failed_on_some_engines_is_served_and_the_reason_is_shown(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        one, other, gateway = await stack.sidecar("decode-0"), await stack.sidecar("decode-1"), await stack.gateway()
        await set_catalog(stack, base(adapter("poet")))
        spec = await sent_catalog(one)
        await report(one, spec, poet=(FAILED, "poet: no room"))
        await status_of(gateway, "poet", FAILED)
        await report(other, spec, poet=(CACHED, ""))
        assert (await status_of(gateway, "poet", CACHED)).reason == "1 of 2 engines cannot serve it: poet: no room"
        known = {event.instance: event.without for event in brain.all_of(events.ModelReported)}
        assert known == {"decode-0": ((spec.adapters[0].identity, "poet: no room"),), "decode-1": ()}
