"""Between messages and the core: ids of an attachment, commands that the driver completes, requests and refusals."""

from __future__ import annotations

import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.codec import nouns
from aegaeon_proto.codec.catalog import footprint_to
from aegaeon_proto.codec.commands import command_from
from aegaeon_proto.codec.errors import ProtocolError
from aegaeon_proto.codec.hello import instance_up_from
from aegaeon_proto.codec.reports import ReportDecoder
from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import (
    CommandId,
    FailureKind,
    Footprint,
    GatewayId,
    InstanceId,
    Memory,
    Phase,
    RejectCode,
    SeqId,
    Terms,
    Tier,
)
from aegaeon_scheduler.service.codec import frontend
from aegaeon_scheduler.service.codec.commands import command_to
from aegaeon_scheduler.service.codec.reports import model_reported

BASE = 1_764_000_000 << 20
HERE = InstanceId("decode-0")
EMPTY = Memory(0, 0)

names = st.text(string.ascii_lowercase + "-/é", min_size=1, max_size=12)
counts = st.integers(0, 2**32 - 1)
ids = st.integers(1, 2**31).map(CommandId)
seqs = st.builds(SeqId, names, counts)
tasks = st.sampled_from(("", "generate", "embed", "score"))
footprints = st.builds(Footprint, counts, counts, names, counts, counts, counts, names, tasks)

many = st.lists(seqs, max_size=3).map(tuple)
parts = st.lists(st.builds(commands.PrefillPart, seqs, counts), max_size=3).map(tuple)
bodies = st.one_of(
    st.builds(commands.Load, names, counts, st.booleans()),
    st.builds(commands.Turn, names, parts, many, counts, counts),
    st.builds(commands.Amend, ids, st.none() | counts, many, many, counts),
    st.builds(commands.Cancel, ids),
)
sends = st.builds(commands.Send, st.just(HERE), ids, bodies, st.lists(ids, max_size=4).map(tuple), names)


@given(sends)
def test_a_command_arrives_as_it_was_decided_with_ids_above_the_base(send: commands.Send) -> None:
    arrived = command_from(engine_pb2.Command.FromString(command_to(send, BASE).SerializeToString()))
    body = arrived.body
    if isinstance(body, commands.Amend):
        body = replace(body, turn=CommandId(body.turn - BASE))
    elif isinstance(body, commands.Cancel):
        body = replace(body, id=CommandId(body.id - BASE))
    after = tuple(CommandId(id_ - BASE) for id_ in arrived.after)
    assert body == send.body
    assert (arrived.id - BASE, after, arrived.reason) == (send.id, send.after, send.reason)


@given(ids, seqs, counts, counts)
def test_adopt_arrives_without_its_source_which_the_handle_replaces(
    id_: CommandId, seq: SeqId, epoch: int, slabs: int
) -> None:
    body = commands.Adopt(seq, epoch, InstanceId("prefill-0"), CommandId(3), slabs)
    adopt = command_to(commands.Send(HERE, id_, body, (), ""), BASE).adopt
    assert (nouns.seq_from(adopt.seq), adopt.epoch, adopt.slabs) == (seq, epoch, slabs)
    assert not adopt.HasField("handle")


@given(seqs, counts, names)
def test_open_arrives_without_what_the_driver_adds(seq: SeqId, epoch: int, model: Any) -> None:
    message = command_to(commands.Send(HERE, CommandId(1), commands.Open(seq, epoch, model), (), ""), BASE).open
    assert (nouns.seq_from(message.seq), message.epoch, message.model) == (seq, epoch, model)
    assert not message.prompt


@given(names, st.sampled_from(Phase), st.none() | footprints, names)
def test_a_model_is_reported_with_its_footprint(
    model: Any, phase: Phase, footprint: Footprint | None, reason: str
) -> None:
    on_wire = "FETCHING" if phase is Phase.ABSENT else phase.name  # earlier schedulers know no other
    state = model_pb2.ModelState(
        model=model,
        phase=model_pb2.ModelPhase.Value(f"MODEL_PHASE_{on_wire}"),
        reason=reason,
        footprint=footprint_to(footprint),
        absent=phase is Phase.ABSENT,
    )
    assert model_reported(HERE, state) == events.ModelReported(HERE, model, phase, footprint, reason)


def test_a_report_without_memory_means_that_none_changed() -> None:
    decoder = ReportDecoder(HERE, "node", Memory(7, 3), 0)
    done = engine_pb2.Report(done=engine_pb2.Done(id=1))
    assert decoder.report(done) == events.CommandDone(HERE, CommandId(1), 0.0, Memory(7, 3))
    decoder.report(engine_pb2.Report(heartbeat=engine_pb2.Heartbeat(memory=engine_pb2.Memory(slabs_free=5))))
    assert decoder.report(done) == events.CommandDone(HERE, CommandId(1), 0.0, Memory(5, 0))


def test_a_report_of_an_unknown_kind_is_ignored() -> None:
    assert ReportDecoder(HERE, "node", EMPTY, 0).report(engine_pb2.Report()) is None


def test_a_failure_of_unknown_kind_is_the_engines() -> None:
    failed = engine_pb2.Report(failed=engine_pb2.Failed(id=4, reason="odd"))
    event = ReportDecoder(HERE, "node", EMPTY, 0).report(failed)
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
        instance_up_from(hello)


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
