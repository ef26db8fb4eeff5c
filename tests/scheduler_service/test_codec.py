"""Every event and command survives the way over the wire: encode, serialise, parse, decode, compare."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import (
    CommandId,
    FailureKind,
    Finish,
    Footprint,
    GatewayId,
    Held,
    InstanceId,
    Memory,
    ModelName,
    Phase,
    Place,
    RejectCode,
    Role,
    SeqId,
    ShapeMemory,
    Terms,
    Tier,
)
from aegaeon_scheduler.errors import ProtocolError
from aegaeon_scheduler.service.codec import frontend, nouns
from aegaeon_scheduler.service.codec.commands import command_to
from aegaeon_scheduler.service.codec.reports import ReportDecoder, command_named, instance_up

BASE = 1_764_000_000 << 20
HERE = InstanceId("decode-0")
EMPTY = Memory(0, 0)

names = st.text(string.ascii_lowercase + "-/é", min_size=1, max_size=12)
counts = st.integers(0, 2**32 - 1)
ids = st.integers(1, 2**31).map(CommandId)
seconds = st.floats(0, 1e6)
seqs = st.builds(SeqId, names, counts)
shapes = st.dictionaries(names, st.builds(ShapeMemory, counts, counts), max_size=3)
memories = st.builds(Memory, counts, counts, shapes, shapes)
footprints = st.builds(Footprint, counts, counts, names, counts, counts, counts, names, st.booleans())
held = st.builds(Held, seqs, counts, names, counts, counts, counts, st.sampled_from(Place))


def wire_code(table: Any, value: object) -> int:
    return next(code for code, meaning in table.items() if meaning is value)


def wire_shapes(memory: dict[Any, ShapeMemory]) -> list[engine_pb2.ShapeMemory]:
    return [
        engine_pb2.ShapeMemory(kv_shape=k, free_blocks=m.free_blocks, used_blocks=m.used_blocks)
        for k, m in memory.items()
    ]


def wire_memory(memory: Memory | None) -> engine_pb2.Memory | None:
    if memory is None:
        return None
    return engine_pb2.Memory(
        slabs_free=memory.slabs_free,
        host_slabs_free=memory.host_slabs_free,
        shapes=wire_shapes(memory.shapes),
        host_shapes=wire_shapes(memory.host_shapes),
    )


def wire_progress(progress: events.Progress) -> engine_pb2.SeqProgress:
    return engine_pb2.SeqProgress(
        seq=nouns.seq_to(progress.seq),
        epoch=progress.epoch,
        output_tokens=progress.output_tokens,
        kv_tokens=progress.kv_tokens,
        starved=progress.starved,
        finish=wire_code(nouns.FINISHES, progress.finish) if progress.finish else 0,
    )


def wire_footprint(footprint: Footprint | None) -> model_pb2.Footprint | None:
    if footprint is None:
        return None
    given = {name: getattr(footprint, name) for name in Footprint.__slots__ if name != "pools"}
    return model_pb2.Footprint(**given, task="embed" if footprint.pools else "generate")


def report_of(event: Any) -> engine_pb2.Report:
    """What a sidecar would have sent for this event."""
    match event:
        case events.CommandDone():
            handle = engine_pb2.KvHandle(kv_tokens=event.kv_tokens)
            done = engine_pb2.Done(
                id=event.id + BASE,
                seconds=event.seconds,
                memory=wire_memory(event.memory),
                handle=handle,
                bytes=event.bytes_moved,
            )
            return engine_pb2.Report(done=done)
        case events.TurnProgress():
            plain = ("steps", "decode_s", "prefill_tokens", "prefill_s", "wait_s", "batch", "context_tokens", "end")
            step = engine_pb2.StepDone(
                turn=event.turn + BASE,
                progress=[wire_progress(p) for p in event.progress],
                memory=wire_memory(event.memory),
                **{name: getattr(event, name) for name in plain},
            )
            return engine_pb2.Report(step_done=step)
        case events.CommandFailed():
            failed = engine_pb2.Failed(
                id=event.id + BASE,
                kind=wire_code(nouns.FAILURES, event.kind),
                reason=event.reason,
                memory=wire_memory(event.memory),
            )
            return engine_pb2.Report(failed=failed)
        case events.ModelReported():
            state = model_pb2.ModelState(
                model=event.model,
                phase=wire_code(nouns.PHASES, event.phase),
                reason=event.reason,
                footprint=wire_footprint(event.footprint),
            )
            return engine_pb2.Report(model=state)
    return short_report_of(event)


def short_report_of(event: Any) -> engine_pb2.Report:
    match event:
        case events.CommandSkipped():
            return engine_pb2.Report(skipped=engine_pb2.Skipped(id=event.id + BASE, because=event.because + BASE))
        case events.MemoryReported():
            return engine_pb2.Report(heartbeat=engine_pb2.Heartbeat(memory=wire_memory(event.memory)))
        case events.HostReported():
            return engine_pb2.Report(host_cache=engine_pb2.HostCache(models=event.cached))
    raise AssertionError(event)


def hello_of(up: events.InstanceUp) -> engine_pb2.Hello:
    plain = ("instance", "incarnation", "node", "device", "slab_bytes", "slabs", "host_slabs", "max_batch", "resident")
    return engine_pb2.Hello(
        **{name: getattr(up, name) for name in plain},
        role=wire_code(nouns.ROLES, up.role),
        memory=wire_memory(up.memory),
        held=[
            engine_pb2.HeldSequence(
                seq=nouns.seq_to(h.seq),
                epoch=h.epoch,
                model=h.model,
                prompt_tokens=h.prompt_tokens,
                output_tokens=h.output_tokens,
                kv_tokens=h.kv_tokens,
                place=wire_code(nouns.PLACES, h.place),
            )
            for h in up.held
        ],
        twins=dict(up.twins),
    )


def reparsed(report: engine_pb2.Report) -> engine_pb2.Report:
    return engine_pb2.Report.FromString(report.SerializeToString())


progress = st.builds(events.Progress, seqs, counts, counts, counts, st.booleans(), st.none() | st.sampled_from(Finish))
reports = st.one_of(
    st.builds(events.CommandDone, st.just(HERE), ids, seconds, memories, counts, counts),
    st.builds(
        events.TurnProgress,
        st.just(HERE),
        ids,
        st.lists(progress, max_size=3).map(tuple),
        counts,
        seconds,
        counts,
        seconds,
        seconds,
        counts,
        counts,
        memories,
        st.booleans(),
    ),
    st.builds(events.CommandFailed, st.just(HERE), ids, st.sampled_from(FailureKind), names, st.none() | memories),
    st.builds(events.CommandSkipped, st.just(HERE), ids, ids),
    st.builds(events.MemoryReported, st.just(HERE), memories),
    st.builds(events.ModelReported, st.just(HERE), names, st.sampled_from(Phase), st.none() | footprints, names),
    st.builds(events.HostReported, st.just("node"), st.lists(names, max_size=3).map(tuple)),
)


@given(reports)
def test_a_report_arrives_as_the_event_it_was_sent_for(event: events.Event) -> None:
    decoder = ReportDecoder(HERE, "node", EMPTY, BASE)
    assert decoder.event(reparsed(report_of(event))) == event


@given(
    st.builds(
        events.InstanceUp,
        names,
        names,
        names,
        st.sampled_from(Role),
        names,
        counts,
        counts,
        counts,
        counts,
        memories,
        st.lists(names, max_size=3).map(tuple),
        st.lists(held, max_size=3).map(tuple),
        st.dictionaries(names, names, max_size=2).map(lambda twins: tuple(sorted(twins.items()))),
    )
)
def test_a_hello_arrives_as_the_instance_it_describes(up: events.InstanceUp) -> None:
    assert instance_up(reparsed(engine_pb2.Report(hello=hello_of(up))).hello) == up


def seq_back(message: model_pb2.SeqId) -> SeqId:
    return nouns.seq_from(message)


def turn_back(b: engine_pb2.Turn) -> commands.Turn:
    parts = tuple(commands.PrefillPart(seq_back(p.seq), p.tokens) for p in b.prefill)
    return commands.Turn(ModelName(b.model), parts, tuple(map(seq_back, b.decode)), b.steps, b.slabs)


def amend_back(b: engine_pb2.Amend) -> commands.Amend:
    steps = b.steps if b.HasField("steps") else None
    join, leave = tuple(map(seq_back, b.join)), tuple(map(seq_back, b.leave))
    return commands.Amend(CommandId(b.turn - BASE), steps, join, leave, b.slabs)


# Commands as a sidecar would understand them.
BODIES: dict[str, Callable[[Any], commands.Body]] = {
    "load": lambda b: commands.Load(b.model, b.slabs, b.past_host, b.twin or None),
    "unload": lambda b: commands.Unload(b.model),
    "swap_out": lambda b: commands.SwapOut(seq_back(b.seq), b.epoch),
    "swap_in": lambda b: commands.SwapIn(seq_back(b.seq), b.epoch, b.slabs),
    "turn": turn_back,
    "open": lambda b: commands.Open(seq_back(b.seq), b.epoch, b.model),
    "close": lambda b: commands.Close(seq_back(b.seq), b.epoch),
    "amend": amend_back,
    "cancel": lambda b: commands.Cancel(CommandId(b.id - BASE)),
}


def body_back(out: engine_pb2.Command) -> commands.Body:
    kind = out.WhichOneof("body")
    assert kind
    return BODIES[kind](getattr(out, kind))


many = st.lists(seqs, max_size=3).map(tuple)
parts = st.lists(st.builds(commands.PrefillPart, seqs, counts), max_size=3).map(tuple)
bodies = st.one_of(
    st.builds(commands.Load, names, counts, st.booleans()),
    st.builds(commands.Unload, names),
    st.builds(commands.SwapOut, seqs, counts),
    st.builds(commands.SwapIn, seqs, counts, counts),
    st.builds(commands.Turn, names, parts, many, counts, counts),
    st.builds(commands.Open, seqs, counts, names),
    st.builds(commands.Close, seqs, counts),
    st.builds(commands.Amend, ids, st.none() | counts, many, many, counts),
    st.builds(commands.Cancel, ids),
)
sends = st.builds(commands.Send, st.just(HERE), ids, bodies, st.lists(ids, max_size=4).map(tuple), names)


@given(sends)
def test_a_command_arrives_as_it_was_decided(send: commands.Send) -> None:
    out = engine_pb2.Command.FromString(command_to(send, BASE).SerializeToString())
    after = tuple(CommandId(id_ - BASE) for id_ in out.after)
    assert commands.Send(HERE, CommandId(out.id - BASE), body_back(out), after, out.reason) == send


@given(ids, seqs, counts, counts)
def test_adopt_arrives_without_its_source_which_the_handle_replaces(
    id_: CommandId, seq: SeqId, epoch: int, slabs: int
) -> None:
    body = commands.Adopt(seq, epoch, InstanceId("prefill-0"), CommandId(3), slabs)
    adopt = command_to(commands.Send(HERE, id_, body, (), ""), BASE).adopt
    assert (seq_back(adopt.seq), adopt.epoch, adopt.slabs) == (seq, epoch, slabs)
    assert not adopt.HasField("handle")


@given(reports)
def test_the_command_that_a_report_names_is_known_before_it_is_decoded(event: Any) -> None:
    named = getattr(event, "id", getattr(event, "turn", None))
    assert command_named(report_of(event)) == (None if named is None else named + BASE)


def test_a_report_without_memory_means_that_none_changed() -> None:
    decoder = ReportDecoder(HERE, "node", Memory(7, 3), 0)
    done = engine_pb2.Report(done=engine_pb2.Done(id=1))
    assert decoder.event(done) == events.CommandDone(HERE, CommandId(1), 0.0, Memory(7, 3))
    decoder.event(engine_pb2.Report(heartbeat=engine_pb2.Heartbeat(memory=engine_pb2.Memory(slabs_free=5))))
    assert decoder.event(done) == events.CommandDone(HERE, CommandId(1), 0.0, Memory(5, 0))


def test_a_report_of_an_unknown_kind_is_ignored() -> None:
    assert ReportDecoder(HERE, "node", EMPTY, 0).event(engine_pb2.Report()) is None


def test_a_failure_of_unknown_kind_is_the_engines() -> None:
    event = ReportDecoder(HERE, "node", EMPTY, 0).event(engine_pb2.Report(failed=engine_pb2.Failed(id=4, reason="odd")))
    assert event == events.CommandFailed(HERE, CommandId(4), FailureKind.ENGINE, "odd")


@pytest.mark.parametrize(
    ("hello", "complaint"),
    [
        (engine_pb2.Hello(instance="a"), "instance and incarnation must be set"),
        (engine_pb2.Hello(instance="a", incarnation="1"), "Hello of a: role: 0 is not one of"),
    ],
)
def test_an_incomplete_hello_is_refused(hello: engine_pb2.Hello, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        instance_up(hello)


def test_a_submission_becomes_one_event_for_each_choice_with_its_arrival_on_our_clock() -> None:
    submit = gateway_pb2.Submit(
        request="r",
        model="m",
        prompt=[5, 6, 7],
        choices=[gateway_pb2.Choice(choice=0, epoch=1), gateway_pb2.Choice(choice=2, epoch=3, prefix=[8, 9])],
        limits=model_pb2.Limits(max_tokens=16),
        age_s=1.5,
    )
    gateway = GatewayId("g")
    assert list(frontend.submitted(gateway, submit, now=10.0)) == [
        events.Submitted(SeqId("r", 0), 1, gateway, "m", 8.5, 3, 0, 16),  # type: ignore[arg-type]
        events.Submitted(SeqId("r", 2), 3, gateway, "m", 8.5, 3, 2, 16),  # type: ignore[arg-type]
    ]


def test_a_request_has_the_terms_that_its_gateway_says_and_one_of_an_older_gateway_those_of_most() -> None:
    submit = gateway_pb2.Submit(request="r", model="m", choices=[gateway_pb2.Choice(epoch=1)])
    terms = []
    for sent in (None, gateway_pb2.Terms(weight=7, tier=model_pb2.TIER_BATCH), gateway_pb2.Terms(weight=2)):
        if sent is not None:
            submit.terms.CopyFrom(sent)
        terms += [event.terms for event in frontend.submitted(GatewayId("g"), submit, now=1.0)]
    assert terms == [Terms(), Terms(Tier.BATCH, 7), Terms(Tier.STANDARD, 2)]


@pytest.mark.parametrize("code", RejectCode)
def test_every_refusal_has_a_code_on_the_wire(code: RejectCode) -> None:
    reject = commands.Reject(GatewayId("g"), SeqId("r", 0), code, "why", 2.5)
    message = frontend.rejected("r", reject).rejected
    assert gateway_pb2.RejectCode.Name(message.code) == f"REJECT_CODE_{code.name}"
    assert (message.request, message.reason, message.retry_after_s) == ("r", "why", 2.5)


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        (nouns.ROLES, Role),
        (nouns.PLACES, Place),
        (nouns.PHASES, Phase),
        (nouns.FINISHES, Finish),
        (nouns.FAILURES, FailureKind),
        (nouns.TIERS, Tier),
    ],
)
def test_every_enum_of_the_core_has_one_on_the_wire(table: Any, kinds: Any) -> None:
    said_otherwise = {Phase.ABSENT}  # by ModelState.absent, with a phase that earlier schedulers know
    assert sorted(table.values(), key=str) == sorted(set(kinds) - said_otherwise, key=str)
