"""Spans of the scheduler at a real receiver: decisions and reports of one traced request, and nothing of another."""

from __future__ import annotations

from typing import Any

from otlp_receiver import attributes, otlp_receiver

from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import CommandId, InstanceId, ModelName, RejectCode, SeqId
from aegaeon_scheduler.service.tracing import RequestSpans

E0, SEQ, OTHER = InstanceId("decode-0"), SeqId("r1", 0), SeqId("r2", 0)
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MEMORY = engine_pb2.Memory(slabs_free=64, host_slabs_free=64)


def send(id_: int, body: commands.Body, *after: int, why: str = "because") -> commands.Send:
    return commands.Send(E0, CommandId(id_), body, tuple(CommandId(one) for one in after), why)


def turn(*decode: SeqId) -> commands.Turn:
    return commands.Turn(ModelName("tiny-a"), (commands.PrefillPart(SEQ, 3),), decode, 4, 1)


def step_done(turn: int, finish: model_pb2.FinishReason.ValueType, **fields: Any) -> engine_pb2.StepDone:
    seq = model_pb2.SeqId(request="r1")
    progress = [engine_pb2.SeqProgress(seq=seq, epoch=1, output_tokens=4, kv_tokens=6, finish=finish)]
    return engine_pb2.StepDone(turn=turn, progress=progress, memory=MEMORY, batch=2, **fields)


async def test_queue_switch_load_turn_and_copies_are_spans_of_the_request(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = lambda e: [
        commands.Accept(e.gateway, e.seq),
        *([send(2, commands.Load(ModelName("tiny-a"), 9)), send(3, turn(SEQ, OTHER), 2)] if e.seq == SEQ else []),
    ]
    brain.script[events.TurnProgress] = lambda e: [commands.SequenceEnded(SEQ, 1)] if e.end else []
    async with otlp_receiver() as receiver:
        async with serve(brain, otlp_endpoint=receiver.endpoint) as stack:
            sidecar, gateway = await stack.sidecar(), await stack.gateway()
            await gateway.submit(request="r2")
            await gateway.submit(traceparent=PARENT)
            load, turned = [(await sidecar.next()).id for _ in range(2)]
            await sidecar.report(done=engine_pb2.Done(id=load, seconds=0.5, memory=MEMORY, bytes=7))
            await sidecar.report(
                step_done=step_done(turned, 0, steps=1, decode_s=0.25, prefill_tokens=3, prefill_s=0.25, wait_s=0.125)
            )
            await sidecar.report(step_done=step_done(turned, model_pb2.FINISH_REASON_STOP, steps=3, end=True))
            await brain.wait_for(events.TurnProgress, 2)
        spans = {span.name: span for _, span in receiver.spans}
    assert sorted(span.name for _, span in receiver.spans) == ["load", "queue", "switch", "turn"]
    assert {service for service, _ in receiver.spans} == {"aegaeon-scheduler"}
    assert {span.trace_id.hex() for span in spans.values()} == {PARENT.split("-")[1]}
    for name in ("queue", "switch", "turn"):
        assert spans[name].parent_span_id.hex() == PARENT.split("-")[2]
    assert spans["load"].parent_span_id == spans["switch"].span_id
    [planned] = spans["queue"].events
    assert attributes(planned.attributes) == {"aegaeon.instance": "decode-0", "aegaeon.reason": "because"}
    said = attributes(spans["turn"].attributes)
    assert (said["aegaeon.steps"], said["aegaeon.prefill_tokens"], said["aegaeon.finish"]) == (4, 3, "stop")
    took = {name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for name, span in spans.items()}
    assert abs(took["load"] - 0.5) < 0.01
    assert abs(took["switch"] - 0.125) < 0.01
    assert took["turn"] >= 0.5
    assert abs(spans["queue"].end_time_unix_nano - spans["switch"].end_time_unix_nano) < 10e6


async def test_a_request_that_is_refused_or_cancelled_leaves_its_reason_and_no_state(serve: Any, brain: Any) -> None:
    brain.script[events.Submitted] = lambda e: [commands.Accept(e.gateway, e.seq)]
    brain.script[events.Cancelled] = lambda e: [
        commands.Reject(brain.all_of(events.Submitted)[0].gateway, e.seq, RejectCode.OVERLOADED, "full"),
        commands.SequenceEnded(e.seq, 1),
    ]
    async with otlp_receiver() as receiver:
        async with serve(brain, otlp_endpoint=receiver.endpoint) as stack:
            gateway = await stack.gateway()
            await gateway.submit(traceparent=PARENT)
            await gateway.send(cancel=gateway_pb2.CancelRequest(request="r1"))
            await gateway.next("rejected")
            [spans] = [one for one in stack.service.driver._observers if isinstance(one, RequestSpans)]
            assert len(spans) == 0
        assert receiver.one("queue").status.message == "overloaded: full"
