"""Gateways over real streams: catalog, submissions and verdicts, coming back and staying away."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from scheduler_service.conftest import submission

from aegaeon_proto.v1 import engine_pb2, gateway_pb2, gateway_pb2_grpc, model_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import CommandId, GatewayId, InstanceId, ModelName, RejectCode, SeqId

GW = GatewayId("gw")
SEQ = SeqId("r1", 0)
SOURCE, TARGET = InstanceId("prefill-0"), InstanceId("decode-0")


def accept(event: events.Submitted) -> list[commands.Command]:
    return [commands.Accept(event.gateway, event.seq)]


def send(instance: InstanceId, id_: int, body: commands.Body) -> commands.Send:
    return commands.Send(instance, CommandId(id_), body, (), "because")


async def test_a_gateway_gets_the_catalog_at_once_and_again_when_a_model_changes(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        footprint = model_pb2.Footprint(kv_shape="s", max_model_len=128)
        cached = model_pb2.ModelState(model="tiny-b", phase=model_pb2.MODEL_PHASE_CACHED, footprint=footprint)
        await stack.sidecar(models=[cached])
        models = (await gateway.next("catalog")).models
        assert [(m.spec.name, m.phase, m.footprint.max_model_len) for m in models] == [
            ("tiny-a", model_pb2.MODEL_PHASE_UNSPECIFIED, 0),
            ("tiny-b", model_pb2.MODEL_PHASE_CACHED, 128),
        ]


async def test_changes_of_the_catalog_are_coalesced(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        sidecar = await stack.sidecar()
        for done in range(100):
            await sidecar.report(
                model=model_pb2.ModelState(
                    model="tiny-a", phase=model_pb2.MODEL_PHASE_FETCHING, bytes_done=done, bytes_total=99
                )
            )
        catalogs = 0
        done = -1
        while done < 99:
            done = (await gateway.next("catalog")).models[0].bytes_done
            catalogs += 1
        assert catalogs < 50


async def test_requests_wait_in_gateways_while_engines_fetch_and_are_submitted_where_there_is_no_engine(
    serve: Any, brain: Any
) -> None:
    async def catalog_waits(gateway: Any, wait: bool) -> None:
        while (await gateway.next("catalog")).models[0].wait is not wait:
            pass

    async with serve(brain) as stack:
        gateway = await stack.gateway()
        fetching = model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_FETCHING)
        sidecar = await stack.sidecar(models=[fetching])
        await catalog_waits(gateway, True)
        await sidecar.report(model=model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_CACHED))
        await catalog_waits(gateway, False)
        await sidecar.report(model=fetching)
        await catalog_waits(gateway, True)
        sidecar.call.cancel()
        await catalog_waits(gateway, False)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"cancel": gateway_pb2.CancelRequest(request="r")}, "the first message on a stream must be GatewayHello"),
        ({"hello": gateway_pb2.GatewayHello(gateway="gw")}, "GatewayHello: gateway and sink must be set"),
    ],
)
async def test_a_gateway_that_does_not_introduce_itself_is_refused(
    serve: Any, brain: Any, anonymous: Any, message: Any, complaint: str
) -> None:
    async with serve(brain) as stack:
        gateway = await anonymous(stack)
        await gateway.send(**message)
        assert await gateway.ended() == (grpc.StatusCode.INVALID_ARGUMENT, complaint)


async def test_a_submission_reaches_the_engine_with_its_prompt(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = lambda e: [*accept(e), send(TARGET, 1, commands.Open(e.seq, e.epoch, e.model))]
    async with serve(brain, first_base=100) as stack:
        sidecar = await stack.sidecar()
        gateway = await stack.gateway(sink="unix:/run/sink.sock")
        submission = await gateway.submit(choices=[gateway_pb2.Choice(choice=0, epoch=4, prefix=[21, 22])], age_s=1.0)
        command = await sidecar.next()
        assert command.id == 101
        assert command.open == engine_pb2.Open(
            seq=model_pb2.SeqId(request="r1"),
            epoch=4,
            model="tiny-a",
            prompt=[11, 12, 13],
            prefix=[21, 22],
            sampling=submission.sampling,
            limits=submission.limits,
            reply_to="unix:/run/sink.sock",
        )
        assert (await gateway.next("accepted")).request == "r1"
        event = await brain.wait_for(events.Submitted)
        assert (event.seq, event.epoch, event.gateway, event.prompt_tokens, event.prefix_tokens) == (SEQ, 4, GW, 3, 2)
        assert 0.9 < brain.times[-1] - event.arrival < 60


async def test_the_handle_of_a_swap_out_goes_into_the_adopt_of_another_sidecar(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = lambda e: [send(SOURCE, 1, commands.SwapOut(SEQ, 1))]
    brain.script[events.CommandDone] = lambda e: [
        send(TARGET, 1, commands.Adopt(SEQ, 1, SOURCE, CommandId(1), slabs=2)),
        send(TARGET, 2, commands.Adopt(SEQ, 1, SOURCE, CommandId(9), slabs=2)),
        send(SOURCE, 2, commands.Close(SEQ, 1)),
        send(TARGET, 3, commands.Adopt(SEQ, 1, SOURCE, CommandId(1), slabs=2)),
    ]
    handle = engine_pb2.KvHandle(node="n", segment="s", blocks=[4, 2], kv_shape="k", epoch=1, kv_tokens=9, output=[5])
    async with serve(brain) as stack:
        source, target = await stack.sidecar("prefill-0"), await stack.sidecar("decode-0")
        await (await stack.gateway()).submit()
        await source.report(done=engine_pb2.Done(id=(await source.next()).id, handle=handle))
        adopted, unknown, closed = [await target.next() for _ in range(3)]
        assert adopted.adopt.handle == handle
        assert (await brain.wait_for(events.CommandDone)).kv_tokens == 9
        # Neither the handle of a SwapOut that never was nor one whose source has closed it is handed out.
        assert unknown.adopt.handle == closed.adopt.handle == engine_pb2.KvHandle()
        assert len(stack.service.driver.handles) == 0


async def test_a_lost_sequence_is_submitted_again_and_opened_with_the_newer_prefix(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = lambda e: [send(TARGET, e.epoch, commands.Open(e.seq, e.epoch, e.model))]
    brain.script[events.InstanceDown] = lambda _: [commands.SequenceLost(GW, SEQ, 1, "its engine is gone")]
    async with serve(brain, reattach_s=0) as stack:
        first = await stack.sidecar()
        gateway = await stack.gateway()
        await gateway.submit()
        assert (await first.next()).open.epoch == 1
        first.call.cancel()
        lost = await gateway.next("lost")
        assert (lost.seq.request, lost.epoch, lost.reason) == ("r1", 1, "its engine is gone")
        second = await stack.sidecar(incarnation="two")
        await gateway.submit(choices=[gateway_pb2.Choice(choice=0, epoch=2, prefix=[31])])
        reopened = (await second.next()).open
        assert (reopened.epoch, list(reopened.prompt), list(reopened.prefix)) == (2, [11, 12, 13], [31])


async def test_a_request_is_accepted_once_and_only_when_all_its_choices_are(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = lambda e: accept(e) if e.seq.choice else []
    brain.script[events.Tick] = lambda _: [commands.Accept(GW, SEQ)]
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit(count=3)
        await brain.wait_for(events.Submitted, 3)
        stack.service.driver.handle(events.Tick())
        assert (await gateway.next("accepted")).request == "r1"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"choices": []}, "submitted without any choice"),
        ({"prompt": []}, "submitted with an empty prompt"),
        ({"limits": model_pb2.Limits()}, "limits.max_tokens must be 1 or more"),
        ({"epoch": 0}, "epochs begin with 1"),
        ({"age_s": float("nan")}, "age_s is nan"),
    ],
)
async def test_an_invalid_submission_is_refused_before_it_reaches_the_core(
    serve: Any, brain: Any, fields: Any, complaint: str
) -> None:
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit(**fields)
        assert complaint in (await gateway.next("rejected")).reason
    assert not brain.all_of(events.Submitted)


@pytest.mark.parametrize("refused", [0, 1, 2])
async def test_one_refused_choice_ends_its_request_and_cancels_the_others(serve: Any, brain: Any, refused: int) -> None:
    def refuse(event: events.Submitted) -> list[commands.Command]:
        if event.seq.choice == refused:
            return [commands.Reject(GW, event.seq, RejectCode.OVERLOADED, "full", 2.0)]
        return accept(event)

    brain.script[events.Submitted] = refuse
    brain.script[events.Cancelled] = lambda e: [commands.SequenceEnded(e.seq, 1)]
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit(count=3)
        rejected = await gateway.next("rejected")
        assert (rejected.code, rejected.retry_after_s) == (gateway_pb2.REJECT_CODE_OVERLOADED, 2.0)
        await brain.wait_for(events.Cancelled, 2)
        assert [type(e) for e in brain.received[1:]] == [events.Submitted] * 3 + [events.Cancelled] * 2
        assert {e.seq.choice for e in brain.all_of(events.Cancelled)} == {0, 1, 2} - {refused}
        assert len(stack.service.driver.sequences) == 0


async def test_a_gateway_cannot_cancel_or_take_over_requests_of_another(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        own, another = await stack.gateway("mine"), await stack.gateway("other")
        await own.submit("r1")
        await brain.wait_for(events.Submitted)
        await another.send(cancel=gateway_pb2.CancelRequest(request="r1"))
        await another.submit("r1", epoch=9)
        rejected = await another.next("rejected")
        assert (rejected.request, rejected.reason) == ("r1", "request r1 is open for another gateway")
        assert len(brain.all_of(events.Submitted)) == 1
        assert brain.all_of(events.Cancelled) == []
        await own.send(cancel=gateway_pb2.CancelRequest(request="r1"))
        assert (await brain.wait_for(events.Cancelled)).seq == SEQ


async def test_a_disconnected_reader_cancels_the_choices_it_names_or_all(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit(count=3)
        await gateway.send(cancel=gateway_pb2.CancelRequest(request="r1", choices=[1]))
        await gateway.send(cancel=gateway_pb2.CancelRequest(request="r1"))
        await gateway.send(cancel=gateway_pb2.CancelRequest(request="never submitted"))
        await brain.wait_for(events.Cancelled, 4)
        assert [e.seq.choice for e in brain.all_of(events.Cancelled)] == [1, 0, 1, 2]


async def test_an_ended_sequence_is_forgotten_unless_it_was_submitted_again(serve: Any, brain: Any) -> None:
    brain.script[events.Cancelled] = lambda e: [commands.SequenceEnded(e.seq, 1)]
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit(epoch=2)
        await gateway.submit("r2", epoch=1)
        for request in ("r1", "r2"):
            await gateway.send(cancel=gateway_pb2.CancelRequest(request=request))
        await brain.wait_for(events.Cancelled, 2)
        kept = stack.service.driver.sequences
        assert (kept.get(SEQ) is not None, kept.get(SeqId("r2", 0)) is None) == (True, True)


async def test_a_gateway_that_reconnects_in_time_drops_what_it_does_not_resubmit(serve: Any, brain: Any) -> None:
    brain.script[events.Cancelled] = lambda e: [commands.SequenceEnded(e.seq, 1)]
    async with serve(brain, gateway_grace_s=3) as stack:
        first = await stack.gateway()
        for request in ("kept", "given up"):
            await first.submit(request)
        await brain.wait_for(events.Submitted, 2)
        first.call.cancel()
        second = await stack.gateway()
        await second.submit("kept", epoch=2)
        assert (await brain.wait_for(events.Cancelled)).seq == SeqId("given up", 0)
        await asyncio.sleep(0.3)
        assert len(brain.all_of(events.Cancelled)) == 1
        assert not brain.all_of(events.GatewayDown)


async def test_a_gateway_that_does_not_reconnect_is_lost_and_its_state_freed(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await gateway.submit(count=2)
        await brain.wait_for(events.Submitted, 2)
        assert len(stack.service.driver.sequences) == 2
        gateway.call.cancel()
        assert (await brain.wait_for(events.GatewayDown)).gateway == GW
        assert len(stack.service.driver.sequences) == 0


async def test_a_second_stream_of_a_gateway_replaces_the_first(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = accept
    async with serve(brain) as stack:
        first, second = await stack.gateway(), await stack.gateway()
        assert (await first.ended())[0] is grpc.StatusCode.UNAVAILABLE
        await second.submit()
        assert (await second.next("accepted")).request == "r1"
        await asyncio.sleep(0.3)
        assert not brain.all_of(events.GatewayDown)


async def test_an_open_without_submission_is_reported_to_the_core_as_failed(serve: Any, brain: Any) -> None:
    brain.script[events.InstanceUp] = lambda e: [send(TARGET, 1, commands.Open(SEQ, 1, ModelName("tiny-a")))]
    async with serve(brain) as stack:
        await stack.sidecar()
        failed = await brain.wait_for(events.CommandFailed)
        assert (failed.instance, failed.id) == (TARGET, 1)


async def test_status_comes_once_or_at_every_interval_and_shows_what_is_being_fetched(serve: Any, brain: Any) -> None:
    fetching = model_pb2.ModelState(model="tiny-b", phase=model_pb2.MODEL_PHASE_FETCHING, bytes_done=10, bytes_total=40)
    async with serve(brain) as stack:
        await stack.sidecar(models=[fetching])
        await brain.wait_for(events.ModelReported)
        (once,) = [status async for status in stack.status()]
        assert (once.pool, once.policy, list(once.fetching)) == ("test", "scripted", [fetching])
        stream = stack.status(interval_s=0.05)
        times = [(await anext(stream)).uptime_s for _ in range(3)]
        assert times[1] - times[0] >= 0.04
        assert times[2] - times[1] >= 0.04
        await stream.aclose()


async def test_gateways_receive_changes_of_the_pools_load(serve: Any, brain: Any) -> None:
    brain.full = 0.5
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        while (load := await gateway.next("load")).kv_used == 0:
            pass
        assert load.kv_used == 0.5
        later = await stack.gateway("later")
        assert (await later.next("load")).kv_used == 0.5
        brain.full = 0.75
        for peer in (gateway, later):
            while (load := await peer.next("load")).kv_used != 0.75:
                assert load.kv_used == 0.5  # the number of gateways changed


async def test_a_gateway_receives_the_places_of_its_requests_when_they_change(
    serve: Any, brain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aegaeon_scheduler.service.queue_positions.EVERY_S", 0.02)
    brain.script[events.Submitted] = accept
    async with serve(brain) as stack:
        gateway, another = await stack.gateway(), await stack.gateway(name="other")
        await gateway.submit(choices=[gateway_pb2.Choice(choice=at, epoch=1) for at in (0, 1)])
        await another.submit(request="r2")
        await gateway.next("accepted")
        await another.next("accepted")
        brain.queued = {SEQ: 4, SeqId("r1", 1): 5, SeqId("r2", 0): 2, SeqId("gone", 0): 1}
        assert [(each.request, each.place) for each in (await gateway.next("places")).places] == [("r1", 5)]
        assert [(each.request, each.place) for each in (await another.next("places")).places] == [("r2", 2)]
        brain.queued = {SEQ: 4, SeqId("r2", 0): 1}
        assert [(each.request, each.place) for each in (await gateway.next("places")).places] == [("r1", 4)]
        assert [(each.request, each.place) for each in (await another.next("places")).places] == [("r2", 1)]


async def test_a_gateway_that_batches_may_send_its_next_message_when_all_of_the_last_is_handled(
    serve: Any, brain: Any
) -> None:
    brain.script[events.Submitted] = lambda event: [
        commands.Accept(event.gateway, event.seq),
        commands.SequenceEnded(event.seq, event.epoch, event.gateway),
    ]
    async with serve(brain) as stack:
        call = gateway_pb2_grpc.FrontendStub(await stack.channel()).Serve()
        hello = gateway_pb2.GatewayHello(gateway="gw", sink="unix:/s", batches=True)
        await call.write(gateway_pb2.GatewayMessage(hello=hello))
        kinds: list[str] = []
        sent = [gateway_pb2.GatewayMessage(submit=submission(f"r{number}")) for number in range(50)]
        async with asyncio.timeout(20):
            while kinds.count("taken") < 3:
                reply = await call.read()
                for part in reply.more or (reply,):
                    if not kinds:
                        assert part.WhichOneof("body") == "taken"  # by which it is known that it reads batches
                    kinds.append(part.WhichOneof("body") or "")
                    if kinds[-1] == "taken":
                        await call.write(gateway_pb2.GatewayMessage(more=sent))
                        sent = [gateway_pb2.GatewayMessage(cancel=gateway_pb2.CancelRequest(request="r1"))]
        verdicts = [kind for kind in kinds if kind in {"accepted", "ended", "taken"}]
        assert verdicts == ["taken", *["accepted", "ended"] * 50, "taken", "taken"]
