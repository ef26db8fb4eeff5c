"""Commands, reports and tokens survive the way over the wire, and the codec knows every field that there is."""

from __future__ import annotations

import dataclasses
import string
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.codec import commands as command_codec
from aegaeon_proto.codec import nouns
from aegaeon_proto.codec.catalog import footprint_from, spec_from, spec_to, state_to
from aegaeon_proto.codec.commands import READERS, command_from
from aegaeon_proto.codec.hello import instance_up_from
from aegaeon_proto.codec.reports import WRITERS, ReportDecoder, command_named, report_to
from aegaeon_proto.codec.tokens import token_to
from aegaeon_proto.engine import catalog, commands, reports
from aegaeon_proto.engine.ids import CommandId, InstanceId, SeqId
from aegaeon_proto.engine.sampling import (
    Constraint,
    ConstraintKind,
    PoolingParams,
    ReasoningBudget,
    SamplingParams,
    TokenRun,
)
from aegaeon_proto.engine.sequences import Finish, Held, KvHandle, Place
from aegaeon_proto.engine.tokens import Said, Token
from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2

BASE = 1_764_000_000 << 20
HERE, NODE = InstanceId("engine-0"), "node"
MESSAGES: Mapping[type, type[Message]] = {
    SeqId: model_pb2.SeqId,
    KvHandle: engine_pb2.KvHandle,
    Held: engine_pb2.HeldSequence,
    TokenRun: model_pb2.TokenRun,
    ReasoningBudget: model_pb2.ReasoningBudget,
    Said: gateway_pb2.PromptLogprob,
    Token: gateway_pb2.Token,
    Constraint: model_pb2.Constraint,
    PoolingParams: model_pb2.Pooling,
    catalog.HubSource: model_pb2.HubSource,
    catalog.S3Source: model_pb2.S3Source,
    catalog.HttpSource: model_pb2.HttpSource,
    catalog.ModelSpec: model_pb2.ModelSpec,
    catalog.AdapterSpec: model_pb2.AdapterSpec,
    catalog.AdapterState: model_pb2.AdapterState,
    catalog.Footprint: model_pb2.Footprint,
    catalog.ModelState: model_pb2.ModelState,
    commands.PrefillPart: engine_pb2.PrefillPart,
    commands.Cancel: engine_pb2.CancelCommand,
    reports.PrefixReuse: engine_pb2.PrefixReuse,
    reports.OutsideSlabs: engine_pb2.OutsideSlabs,
    reports.Memory: engine_pb2.Memory,
    reports.Hello: engine_pb2.Hello,
    reports.CommandDone: engine_pb2.Done,
    reports.Progress: engine_pb2.SeqProgress,
    reports.TurnProgress: engine_pb2.StepDone,
    reports.CommandFailed: engine_pb2.Failed,
    reports.CommandSkipped: engine_pb2.Skipped,
    reports.MemoryReported: engine_pb2.Heartbeat,
    reports.HostReported: engine_pb2.HostCache,
    reports.InstanceDraining: engine_pb2.Draining,
    **{kind: getattr(engine_pb2, kind.__name__) for kind in get_args(commands.Body) if kind is not commands.Cancel},
}
GUIDE = "docs/design/processes.md, Adding a field"
RENAMED = {"bytes_moved": "bytes", "cached": "models"}
OFF_THE_WIRE: Mapping[
    type, set[str]
] = {  # the stream says of which engine a report is, the handle how many tokens it has
    reports.CommandDone: {"instance", "kv_tokens"},
    reports.TurnProgress: {"instance"},
    reports.CommandFailed: {"instance"},
    reports.CommandSkipped: {"instance"},
    reports.MemoryReported: {"instance"},
    reports.InstanceDraining: {"instance"},
    reports.HostReported: {"node"},
}
CODES: Mapping[type[Enum], Mapping[Any, int]] = {
    reports.Role: nouns.ROLES,
    Place: nouns.PLACES,
    catalog.ModelPhase: nouns.PHASES,
    Finish: nouns.FINISHES,
    ConstraintKind: nouns.CONSTRAINT_KINDS,
    reports.FailureKind: nouns.FAILURES,
    catalog.Tier: nouns.TIERS,
}
ENUMS: Mapping[type[Enum], Any] = {
    reports.Role: engine_pb2.Role,
    Place: engine_pb2.KvPlace,
    catalog.ModelPhase: model_pb2.ModelPhase,
    Finish: model_pb2.FinishReason,
    ConstraintKind: model_pb2.ConstraintKind,
    reports.FailureKind: engine_pb2.FailureKind,
    catalog.Tier: model_pb2.Tier,
}
SOURCES = {catalog.HubSource: "hub", catalog.S3Source: "s3", catalog.HttpSource: "http"}
LIMITS = ("max_tokens", "min_tokens", "stop_ids")

PLAIN = {
    types.NoneType: st.none(),
    str: st.text(string.ascii_letters + "-/é", max_size=8),
    int: st.integers(0, 2**32 - 1),
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    float: st.floats(-(2.0**40), 2.0**40, width=32),
}


def test_a_reason_that_quotes_a_lone_surrogate_is_sent_escaped() -> None:
    state = catalog.ModelState("m", catalog.ModelPhase.FAILED, "tensor a\ud800 is missing")
    assert state_to(state).reason == "tensor a\\ud800 is missing"


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Every value of a domain type, by the types of its fields."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, of))
    if origin is tuple:
        return st.lists(values(of[0]), max_size=3).map(tuple) if of[-1] is ... else st.tuples(*map(values, of))
    if origin in (Mapping, dict):
        return st.dictionaries(values(of[0]), values(of[1]), max_size=3)
    kind = getattr(kind, "__supertype__", kind)
    return PLAIN[kind] if kind in PLAIN else _record(kind)


def _record(kind: Any) -> st.SearchStrategy[Any]:
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    if kind is commands.Load:
        return st.builds(_load, *map(values, get_type_hints(kind).values()))
    if kind is reports.CommandDone:
        return st.builds(_done, *map(values, (CommandId, float, reports.Memory, int, KvHandle | None)))
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})


def _load(model: Any, slabs: int, past_host: bool, twin: Any, identity: str) -> commands.Load:
    return commands.Load(model, slabs, past_host, twin or None, identity)  # on the wire no twin is an empty name


def _done(id: CommandId, seconds: float, memory: reports.Memory, moved: int, handle: KvHandle | None) -> Any:
    return reports.CommandDone(HERE, id, seconds, memory, moved, handle.kv_tokens if handle else 0, handle)


def wire(value: Any) -> Any:
    """Protobuf form of a value of the domain, field by field, by name: another writer than the codec's own."""
    if isinstance(value, Enum):
        return CODES[type(value)][value]
    if isinstance(value, commands.Open):
        return _opened(value)
    if isinstance(value, catalog.Source):
        return _source(value)
    if isinstance(value, reports.Hello):
        return _hello(value)
    if type(value) in MESSAGES:
        return _message(value)
    return [wire(item) for item in value] if isinstance(value, tuple) else value


def _source(source: catalog.Source) -> model_pb2.ModelSource:
    if isinstance(source, catalog.DirectorySource):
        return model_pb2.ModelSource(directory=source.directory, root=source.root)
    return model_pb2.ModelSource(**{SOURCES[type(source)]: _message(source)})


def _opened(value: commands.Open) -> engine_pb2.Open:
    rest = {name: wire(getattr(value, name)) for name in fields(commands.Open) - {"sampling", "max_tokens"}}
    sampling = {name: wire(getattr(value.sampling, name)) for name in fields(SamplingParams) - set(LIMITS)}
    limits = model_pb2.Limits(
        max_tokens=value.max_tokens, min_tokens=value.sampling.min_tokens, stop_ids=value.sampling.stop_ids
    )
    return engine_pb2.Open(sampling=model_pb2.Sampling(**sampling), limits=limits, **rest)


def _hello(value: reports.Hello) -> engine_pb2.Hello:
    of = {name: wire(getattr(value.up, name)) for name in fields(reports.InstanceUp) - {"beside", "twins"}}
    rest = {name: wire(getattr(value, name)) for name in fields(reports.Hello) - {"up"}}
    return engine_pb2.Hello(twins=dict(value.up.twins), **of, **rest)


def _message(value: Any) -> Message:
    kind = type(value)
    named = {
        RENAMED.get(name, name): wire(getattr(value, name)) for name in fields(kind) - OFF_THE_WIRE.get(kind, set())
    }
    if isinstance(value, Token | Said):
        named["top"] = [gateway_pb2.TopLogprob(token=token, logprob=logprob) for token, logprob in value.top]
    if isinstance(value, reports.Memory):
        named |= {name: _shapes(getattr(value, name)) for name in ("shapes", "host_shapes")}
    return MESSAGES[kind](**{name: item for name, item in named.items() if item is not None})


def _shapes(shapes: Mapping[str, reports.ShapeMemory]) -> list[engine_pb2.ShapeMemory]:
    return [
        engine_pb2.ShapeMemory(kv_shape=shape, free_blocks=blocks.free_blocks, used_blocks=blocks.used_blocks)
        for shape, blocks in shapes.items()
    ]


def fields(kind: type) -> set[str]:
    return set(kind._fields) if issubclass(kind, tuple) else {field.name for field in dataclasses.fields(kind)}


def fields_on_wire(kind: type) -> set[str]:
    return {RENAMED.get(name, name) for name in fields(kind) - OFF_THE_WIRE.get(kind, set())}


def command_to(command: commands.Command) -> engine_pb2.Command:
    kinds = {field.message_type.name: field.name for field in bodies(engine_pb2.Command)}
    body: Any = wire(command.body)
    fields_by_kind = {kinds[body.DESCRIPTOR.name]: body}
    return engine_pb2.Command(id=command.id, after=command.after, reason=command.reason, **fields_by_kind)


def bodies(message: type[Message]) -> list[Any]:
    return list(message.DESCRIPTOR.oneofs_by_name["body"].fields)


@given(values(commands.Command).filter(lambda command: command.body is not None))
def test_a_command_arrives_as_it_was_sent(command: commands.Command) -> None:
    arrived = command_from(engine_pb2.Command.FromString(command_to(command).SerializeToString()))
    assert arrived == command, f"a function `_from` of codec/commands.py loses a field: {GUIDE}"


@given(values(Union[tuple(command_codec.WRITERS)]))
def test_a_command_that_is_decided_arrives(body: commands.Body) -> None:
    out = engine_pb2.Command(id=1)
    command_codec.WRITERS[type(body)](out, body)
    arrived = command_from(engine_pb2.Command.FromString(out.SerializeToString())).body
    assert arrived == body, f"a function of codec/commands.py, `_to` or `_from`, loses a field: {GUIDE}"


@given(values(reports.Report))
def test_a_report_says_on_the_wire_what_it_says_here(report: reports.Report) -> None:
    kinds = {field.message_type.name: field.name for field in bodies(engine_pb2.Report)}
    sent: Any = wire(report)
    expected = engine_pb2.Report(**{kinds[sent.DESCRIPTOR.name]: sent})
    assert engine_pb2.Report.FromString(report_to(report).SerializeToString()) == expected


@given(values(reports.Report))
def test_a_report_arrives_as_it_was_sent(report: Any) -> None:
    message = engine_pb2.Report.FromString(report_to(report).SerializeToString())
    decoder = ReportDecoder(HERE, NODE, reports.Memory(7, 3), 0)
    if isinstance(report, reports.Hello):
        if report.up.instance and report.up.incarnation:
            assert instance_up_from(message.hello) == _without_handles(report.up)
    elif isinstance(report, catalog.ModelState):
        assert report.footprint is None or footprint_from(message.model.footprint) == report.footprint
    else:
        where = {"instance": HERE, "node": NODE, "handle": None}
        local = {name: value for name, value in where.items() if name in fields(type(report))}
        assert decoder.report(message) == dataclasses.replace(report, **local)
        assert command_named(message) == getattr(report, "id", getattr(report, "turn", None))


def _without_handles(up: reports.InstanceUp) -> reports.InstanceUp:
    held = tuple(dataclasses.replace(each, handle=None) for each in up.held)
    return dataclasses.replace(up, held=held, beside=False, twins=tuple(sorted(dict(up.twins).items())))


def test_ids_on_the_wire_are_higher_by_the_base_of_the_attachment() -> None:
    skipped = engine_pb2.Report(skipped=engine_pb2.Skipped(id=BASE + 4, because=BASE + 3))
    expected = reports.CommandSkipped(HERE, CommandId(4), CommandId(3))
    assert ReportDecoder(HERE, NODE, reports.Memory(0, 0), BASE).report(skipped) == expected


@given(values(Token))
def test_a_token_says_on_the_wire_what_it_says_here(token: Token) -> None:
    assert gateway_pb2.Token.FromString(token_to(token).SerializeToString()) == wire(token)


@given(values(catalog.ModelSpec))
def test_a_model_reaches_the_next_scheduler_as_the_last_one_sent_it(spec: catalog.ModelSpec) -> None:
    assert spec_from(spec_to(spec)) == spec


@pytest.mark.parametrize(
    "kind", [kind for kind in MESSAGES if kind not in (commands.Open, reports.Hello)], ids=lambda kind: kind.__name__
)
def test_a_type_has_the_fields_of_its_message(kind: type) -> None:
    fields_of_message = set(MESSAGES[kind].DESCRIPTOR.fields_by_name)
    assert fields_on_wire(kind) == fields_of_message, f"{kind.__module__} and proto/aegaeon_proto/v1: {GUIDE}"


def test_a_hello_has_the_fields_of_its_message() -> None:
    hello = fields(reports.Hello) - {"up"} | fields(reports.InstanceUp) - {"beside"}
    assert hello == set(engine_pb2.Hello.DESCRIPTOR.fields_by_name)
    assert fields(reports.ShapeMemory) | {"kv_shape"} == set(engine_pb2.ShapeMemory.DESCRIPTOR.fields_by_name)


def test_an_open_has_the_fields_of_its_message_and_of_its_parts() -> None:
    expected = set(engine_pb2.Open.DESCRIPTOR.fields_by_name) - {"limits"} | {"max_tokens"}
    assert fields(commands.Open) == expected
    assert set(model_pb2.Limits.DESCRIPTOR.fields_by_name) == set(LIMITS)
    expected_params = set(model_pb2.Sampling.DESCRIPTOR.fields_by_name) | set(LIMITS) - {"max_tokens"}
    assert fields(SamplingParams) == expected_params


def test_a_source_has_the_kinds_of_its_message() -> None:
    kinds = [field.name for field in model_pb2.ModelSource.DESCRIPTOR.oneofs_by_name["kind"].fields]
    assert sorted(kinds) == sorted(["directory", *SOURCES.values()])
    assert fields(catalog.DirectorySource) == set(model_pb2.ModelSource.DESCRIPTOR.fields_by_name) - set(
        SOURCES.values()
    )


def test_every_body_of_a_command_and_of_a_report_is_known() -> None:
    assert set(READERS) == {field.name for field in bodies(engine_pb2.Command)}
    from_messages = {commands.Open, commands.Adopt, commands.Catalog}  # see the codec
    assert set(command_codec.WRITERS) == set(get_args(commands.Body)) - from_messages
    assert set(WRITERS) == set(get_args(reports.Report))
    assert len(WRITERS) == len(bodies(engine_pb2.Report))
    assert fields(commands.Command) == {"body", "id", "after", "reason"}
    outside = set(engine_pb2.Command.DESCRIPTOR.fields_by_name) - set(READERS)
    assert outside == {"id", "after", "reason"}


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_an_enumeration_has_the_values_of_its_message(kind: type[Enum]) -> None:
    assert {member for member in CODES[kind] if member is not None} == set(kind)
    assert set(CODES[kind].values()) | {0} == set(ENUMS[kind].values())
    for member, code in CODES[kind].items():
        assert member is None or ENUMS[kind].Name(code).endswith(f"_{member.name}")


def test_a_command_of_a_kind_from_the_future_has_no_body() -> None:
    assert command_from(engine_pb2.Command(id=3, after=[1, 2])) == commands.Command(3, None, (1, 2))
