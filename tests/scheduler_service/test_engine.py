"""Sidecars over real streams: the handshake, who counts as alive, and which reports reach the core."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from aegaeon_proto.v1 import admin_pb2, engine_pb2, model_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import CommandId, InstanceId, Memory, ModelName, Phase, SeqId
from aegaeon_scheduler.service.throttle import Throttle

HERE = InstanceId("decode-0")


def load(id_: int) -> commands.Send:
    return commands.Send(HERE, CommandId(id_), commands.Load(ModelName("tiny-a"), 3), (), "wanted")


async def test_a_sidecar_gets_the_catalog_before_anything_else(serve: Any, brain: Any) -> None:
    brain.script[events.InstanceUp] = lambda _: [load(1)]
    async with serve(brain) as stack:
        sidecar = await stack.attach()
        await sidecar.report(
            hello=engine_pb2.Hello(instance="decode-0", incarnation="one", role=engine_pb2.ROLE_DECODE)
        )
        first = await sidecar.next()
        assert first.id == 0
        assert [(m.name, m.source.WhichOneof("kind")) for m in first.catalog.models] == [
            ("tiny-a", "directory"),
            ("tiny-b", "hub"),
        ]
        second = await sidecar.next()
        assert (second.id, second.load.model, second.reason) == (1001, "tiny-a", "wanted")
    assert isinstance(brain.received[0], events.CatalogChanged)
    assert [m.name for m in brain.received[0].models] == ["tiny-a", "tiny-b"]


async def test_commands_and_reports_share_messages_and_keep_their_order(serve: Any, brain: Any) -> None:
    beats = [engine_pb2.Report(heartbeat=engine_pb2.Heartbeat(memory={"slabs_free": n})) for n in range(5)]
    brain.script[events.MemoryReported] = lambda beat: [load(2 * beat.memory.slabs_free + n) for n in (1, 2)]
    async with serve(brain) as stack:
        sidecar = await stack.attach()
        hello = engine_pb2.Hello(instance="decode-0", incarnation="one", role=engine_pb2.ROLE_DECODE)
        await sidecar.write(engine_pb2.Report(hello=hello), *beats[:2])
        await sidecar.write(*beats[2:])
        messages: list[list[int]] = []
        while sum(map(len, messages)) < 11:
            messages.append([command.id for command in await sidecar.message()])
    assert [id_ for ids in messages for id_ in ids] == [0, *range(1001, 1011)]
    assert messages[0] == [0]  # a catalog ends its message
    assert len(messages) in (2, 3)  # one for each message of reports, or for both
    assert [event.memory.slabs_free for event in brain.all_of(events.MemoryReported)] == list(range(5))


async def test_a_message_without_reports_is_no_hello(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.attach()
        await sidecar.write()
        assert (await sidecar.ended())[0] is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_that_does_not_begin_with_hello_is_refused(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.attach()
        await sidecar.report(heartbeat=engine_pb2.Heartbeat())
        assert await sidecar.ended() == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "the first report on a stream must be Hello",
        )
    assert not brain.all_of(events.InstanceUp)


async def test_a_hello_with_an_invalid_model_state_is_refused_and_registers_nothing(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.attach()
        hello = engine_pb2.Hello(instance="decode-0", incarnation="one", role=engine_pb2.ROLE_DECODE)
        hello.models.add(model="tiny-a")
        await sidecar.report(hello=hello)
        code, details = await sidecar.ended()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "ModelState of tiny-a from decode-0: phase" in details
        assert stack.service.engine.up == 0


async def test_a_second_hello_ends_the_stream_with_a_reason(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        await sidecar.report(hello=engine_pb2.Hello(instance="decode-0", incarnation="one"))
        code, details = await sidecar.ended()
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "Hello twice" in details


async def test_models_of_the_hello_reach_the_core_after_the_instance_itself(serve: Any, brain: Any) -> None:
    states = [
        model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_CACHED),
        model_pb2.ModelState(model="withdrawn", phase=model_pb2.MODEL_PHASE_CACHED),
    ]
    async with serve(brain) as stack:
        await stack.sidecar(models=states)
        await brain.wait_for(events.ModelReported)
    assert [type(e) for e in brain.received[1:3]] == [events.InstanceUp, events.ModelReported]
    assert brain.all_of(events.ModelReported) == [events.ModelReported(HERE, ModelName("tiny-a"), Phase.CACHED)]


async def test_a_sidecar_that_does_not_reconnect_is_lost(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        up_at = brain.times[-1]
        sidecar.call.cancel()
        assert (await brain.wait_for(events.InstanceDown)).instance == HERE
        assert 0.1 <= brain.times[-1] - up_at < 60
        assert stack.service.engine.up == 0


async def test_a_sidecar_that_reconnects_in_time_is_up_again_with_what_it_holds(serve: Any, brain: Any) -> None:
    held = engine_pb2.HeldSequence(
        seq=model_pb2.SeqId(request="r"), epoch=1, model="tiny-a", place=engine_pb2.KV_PLACE_HOST
    )
    async with serve(brain, reattach_s=30) as stack:
        first = await stack.sidecar()
        first.call.cancel()
        await stack.sidecar(held=[held])
        up = await brain.wait_for(events.InstanceUp, 2)
    assert [h.seq for h in up.held] == [SeqId("r", 0)]
    assert [type(e) for e in brain.received[1:]] == [events.InstanceUp, events.InstanceUp]


async def test_a_restarted_sidecar_replaces_its_predecessor(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        former = await stack.sidecar(incarnation="one")
        await stack.sidecar(incarnation="two")
        assert (await former.ended())[0] is grpc.StatusCode.UNAVAILABLE
        assert [type(e) for e in brain.received[1:]] == [events.InstanceUp, events.InstanceUp]
        assert (await brain.wait_for(events.InstanceUp, 2)).incarnation == "two"
        await asyncio.sleep(0.3)  # the former stream's grace has passed: it must not take the new one down
        assert not brain.all_of(events.InstanceDown)


async def refused(stack: Any, **hello: Any) -> tuple[grpc.StatusCode, str]:
    """How the scheduler answers this Hello, which it must not take."""
    sidecar = await stack.attach()
    await sidecar.report(hello=engine_pb2.Hello(instance=HERE, role=engine_pb2.ROLE_UNIFIED, **hello))
    return await sidecar.ended()


@pytest.mark.parametrize(
    ("first", "ups"), [("one", [("one", False), ("two", True)]), ("two", [("two", False)])], ids=("one", "two")
)
async def test_of_two_processes_with_one_name_the_later_start_wins_whichever_attached_first(
    serve: Any, brain: Any, first: str, ups: list[tuple[str, bool]]
) -> None:
    async with serve(brain) as stack:
        if first == "one":
            await stack.sidecar(incarnation="one", started=100.0)
        await stack.sidecar(incarnation="two", started=200.5)
        code, details = await refused(stack, incarnation="one", started=100.0)
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert f"another process named {HERE} started after this one" in details
        came = [(one.incarnation, one.beside) for one in brain.all_of(events.InstanceUp)]
        assert came == ups, "what ran on the first is not to blame"


async def test_the_process_that_started_first_waits_until_the_later_one_is_lost(serve: Any, brain: Any) -> None:
    async with serve(brain, reattach_s=0.5) as stack:
        later = await stack.sidecar(incarnation="two", started=200.5)
        later.call.cancel()
        code, _ = await refused(stack, incarnation="one", started=100.0)
        assert code is grpc.StatusCode.ALREADY_EXISTS, "the later one may reconnect"
        await brain.wait_for(events.InstanceDown)
        await stack.sidecar(incarnation="one", started=100.0)
        assert brain.all_of(events.InstanceUp)[-1].incarnation == "one"


async def test_the_process_that_started_first_takes_over_from_one_that_drains(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        later = await stack.sidecar(incarnation="two", started=200.5)
        await later.report(draining=engine_pb2.Draining())
        await brain.wait_for(events.InstanceDraining)
        await stack.sidecar(incarnation="one", started=100.0)
        assert brain.all_of(events.InstanceUp)[-1].incarnation == "one"


async def test_an_engine_that_is_about_to_end_drains_now_and_when_it_comes_back(serve: Any, brain: Any) -> None:
    """Its pod is deleted while its node is disconnected: it attaches again before it knows of that."""
    async with serve(brain) as stack:
        admin = await stack.admin()
        sidecar = await stack.sidecar(incarnation="one")
        await admin.SetEnding(admin_pb2.SetEndingRequest(instances=["decode-0", "decode-7"], for_s=60))
        await brain.wait_for(events.InstanceDraining)
        sidecar.call.cancel()
        await brain.wait_for(events.InstanceDown)
        back = await stack.sidecar(incarnation="one")
        await brain.wait_for(events.InstanceDraining, 2)
        back.call.cancel()
        await brain.wait_for(events.InstanceDown, 2)
        await admin.SetEnding(admin_pb2.SetEndingRequest(instances=["decode-0"], for_s=0))
        await stack.sidecar(incarnation="two")
    assert [one.instance for one in brain.all_of(events.InstanceDraining)] == [HERE, HERE]


async def test_the_pod_that_comes_in_the_place_of_one_that_ended_does_not_drain(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        admin = await stack.admin()
        sidecar = await stack.sidecar(incarnation="one", started=time.time())
        await admin.SetEnding(admin_pb2.SetEndingRequest(instances=["decode-0"], for_s=60))
        await brain.wait_for(events.InstanceDraining)
        sidecar.call.cancel()
        await brain.wait_for(events.InstanceDown)
        await admin.SetEnding(admin_pb2.SetEndingRequest(instances=["decode-0"], for_s=60))
        back = await stack.sidecar(incarnation="one", started=time.time() - 9)  # its node was disconnected
        await brain.wait_for(events.InstanceDraining, 2)
        back.call.cancel()
        await brain.wait_for(events.InstanceDown, 2)
        await stack.sidecar(incarnation="two", started=time.time())
        await brain.wait_for(events.InstanceUp, 3)
    assert len(brain.all_of(events.InstanceDraining)) == 2


async def test_a_silent_sidecar_is_lost_and_must_reconnect(serve: Any, brain: Any) -> None:
    async with serve(brain, heartbeat_timeout_s=0.3) as stack:
        sidecar = await stack.sidecar()
        await brain.wait_for(events.InstanceDown)
        assert 0.3 <= brain.times[-1] - brain.times[1] < 60
        assert (await sidecar.ended())[0] is grpc.StatusCode.UNAVAILABLE


async def test_heartbeats_keep_a_sidecar_alive(serve: Any, brain: Any) -> None:
    async with serve(brain, heartbeat_timeout_s=3) as stack:
        sidecar = await stack.sidecar()
        for _ in range(10):
            await sidecar.report(heartbeat=engine_pb2.Heartbeat(memory=engine_pb2.Memory(slabs_free=9)))
            await asyncio.sleep(0.4)
        assert not brain.all_of(events.InstanceDown)
        assert brain.all_of(events.MemoryReported)[0] == events.MemoryReported(HERE, Memory(9, 0))


async def test_sidecars_are_not_lost_because_the_scheduler_was_stopped_for_a_moment(serve: Any, brain: Any) -> None:
    async with serve(brain, heartbeat_timeout_s=2) as stack:
        sidecar = await stack.sidecar()
        time.sleep(3.3)  # noqa: ASYNC251 - the loop itself is to be stopped
        await sidecar.report(heartbeat=engine_pb2.Heartbeat())
        await brain.wait_for(events.MemoryReported)
        assert not brain.all_of(events.InstanceDown)
        await brain.wait_for(events.InstanceDown)  # it says nothing more


async def test_a_sidecar_is_not_silent_while_its_report_waits_for_its_turn(
    serve: Any, brain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = asyncio.Event()
    monkeypatch.setattr(Throttle, "enter", lambda _: turn.wait())
    async with serve(brain, heartbeat_timeout_s=0.4) as stack:
        sidecar = await stack.sidecar()
        await sidecar.report(heartbeat=engine_pb2.Heartbeat())
        await asyncio.sleep(1.2)
        assert not brain.all_of(events.InstanceDown)
        turn.set()
        await brain.wait_for(events.InstanceDown)
        assert brain.all_of(events.MemoryReported)


async def test_reports_about_commands_of_an_earlier_stream_never_reach_the_core(serve: Any, brain: Any) -> None:
    brain.script[events.InstanceUp] = lambda _: [load(1)]
    async with serve(brain, first_base=1000) as stack:
        await stack.sidecar()
        again = await stack.sidecar()
        assert (await again.next()).id == 2001
        for id_ in (1, 1001, 2001):
            await again.report(done=engine_pb2.Done(id=id_))
        await brain.wait_for(events.CommandDone)
        assert [e.id for e in brain.all_of(events.CommandDone)] == [1]


async def test_reports_that_were_on_their_way_when_their_stream_was_replaced_are_dropped(
    serve: Any, brain: Any
) -> None:
    async with serve(brain) as stack:
        former = await stack.sidecar()
        for _ in range(200):
            await former.report(heartbeat=engine_pb2.Heartbeat())
        await stack.sidecar()
        assert (await former.ended())[0] is grpc.StatusCode.UNAVAILABLE
    ups = [n for n, e in enumerate(brain.received) if isinstance(e, events.InstanceUp)]
    assert not any(isinstance(e, events.MemoryReported) for e in brain.received[ups[1] :])


async def test_a_sidecar_that_does_not_read_is_disconnected_with_bounded_memory(serve: Any, brain: Any) -> None:
    fat = "x" * 1000
    flood = [commands.Send(HERE, CommandId(n), commands.Unload(ModelName(fat)), (), "flood") for n in range(1, 20_000)]
    brain.script[events.MemoryReported] = lambda _: flood
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        await sidecar.report(heartbeat=engine_pb2.Heartbeat())
        await brain.wait_for(events.MemoryReported)
        assert await sidecar.ended() == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "messages were not read; connect anew",
        )
        await brain.wait_for(events.InstanceDown)


@pytest.mark.parametrize("kind", ["failed", "skipped"])
async def test_commands_that_could_not_be_sent_are_reported_to_the_core(serve: Any, brain: Any, kind: str) -> None:
    brain.script[events.InstanceUp] = lambda _: [load(1), load(2)]
    body = {"failed": engine_pb2.Failed(id=1001, reason="no"), "skipped": engine_pb2.Skipped(id=1002, because=1001)}
    event = {"failed": events.CommandFailed, "skipped": events.CommandSkipped}[kind]
    async with serve(brain) as stack:
        sidecar = await stack.sidecar()
        await sidecar.report(**{kind: body[kind]})
        assert (await brain.wait_for(event)).instance == HERE
