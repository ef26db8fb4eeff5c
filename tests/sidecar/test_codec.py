"""Every command, report and token survives the way over the wire, and the codec knows every field that there is."""

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

from aegaeon_proto.constraints import ConstraintKind
from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_sidecar.domain import catalog, commands, reports
from aegaeon_sidecar.domain.sequences import (
    Constraint,
    Finish,
    KvHandle,
    Place,
    PoolingParams,
    ReasoningBudget,
    Said,
    SamplingParams,
    SeqKey,
    TokenRun,
)
from aegaeon_sidecar.rpc.codec import nouns
from aegaeon_sidecar.rpc.codec.commands import READERS, command_from
from aegaeon_sidecar.rpc.codec.reports import WRITERS, report_to
from aegaeon_sidecar.rpc.codec.tokens import token_to

MESSAGES: Mapping[type, type[Message]] = {
    SeqKey: model_pb2.SeqId,
    KvHandle: engine_pb2.KvHandle,
    TokenRun: model_pb2.TokenRun,
    ReasoningBudget: model_pb2.ReasoningBudget,
    Said: gateway_pb2.PromptLogprob,
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
    reports.ShapeMemory: engine_pb2.ShapeMemory,
    reports.PrefixReuse: engine_pb2.PrefixReuse,
    reports.OutsideSlabs: engine_pb2.OutsideSlabs,
    reports.Memory: engine_pb2.Memory,
    reports.HeldSequence: engine_pb2.HeldSequence,
    reports.SeqProgress: engine_pb2.SeqProgress,
    reports.Token: gateway_pb2.Token,
    commands.Cancel: engine_pb2.CancelCommand,
    **{one: getattr(engine_pb2, one.__name__) for one in get_args(commands.Body) if one is not commands.Cancel},
    **{one: getattr(engine_pb2, one.__name__) for one in get_args(reports.Report) if one is not catalog.ModelState},
}
CODES: Mapping[type[Enum], Mapping[Any, int]] = {
    reports.Role: nouns.ROLES,
    Place: nouns.PLACES,
    catalog.ModelPhase: nouns.PHASES,
    Finish: nouns.FINISHES,
    ConstraintKind: nouns.CONSTRAINT_KINDS,
    reports.FailureKind: nouns.FAILURES,
    catalog.ServiceTier: nouns.TIERS,
}
ENUMS: Mapping[type[Enum], Any] = {
    reports.Role: engine_pb2.Role,
    Place: engine_pb2.KvPlace,
    catalog.ModelPhase: model_pb2.ModelPhase,
    Finish: model_pb2.FinishReason,
    ConstraintKind: model_pb2.ConstraintKind,
    reports.FailureKind: engine_pb2.FailureKind,
    catalog.ServiceTier: model_pb2.Tier,
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
    assert nouns.state_to(state).reason == "tensor a\\ud800 is missing"


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Every value of a domain type, by the types of its fields."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of(*map(values, of))
    if origin is tuple:
        return st.lists(values(of[0]), max_size=3).map(tuple) if of[-1] is ... else st.tuples(*map(values, of))
    if origin is Mapping:
        return st.dictionaries(values(of[0]), values(of[1]), max_size=3)
    return PLAIN[kind] if kind in PLAIN else _whole(kind)


def _whole(kind: Any) -> st.SearchStrategy[Any]:
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})


def wire(value: Any) -> Any:
    """What protobuf takes for a value of the domain, field by field, by name: another writer than the codec's own."""
    if isinstance(value, Enum):
        return CODES[type(value)][value]
    if isinstance(value, commands.Open):
        return _opened(value)
    if isinstance(value, catalog.Source):
        return _source(value)
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


def _message(value: Any) -> Message:
    given = {name: wire(getattr(value, name)) for name in fields(type(value))}
    if isinstance(value, reports.Token | Said):
        given["top"] = [gateway_pb2.TopLogprob(token=token, logprob=logprob) for token, logprob in value.top]
    return MESSAGES[type(value)](**{name: item for name, item in given.items() if item is not None})


def fields(kind: type) -> set[str]:
    return set(kind._fields) if issubclass(kind, tuple) else {field.name for field in dataclasses.fields(kind)}


def command_to(command: commands.Command) -> engine_pb2.Command:
    kinds = {field.message_type.name: field.name for field in bodies(engine_pb2.Command)}
    body: Any = wire(command.body)
    given = {kinds[body.DESCRIPTOR.name]: body}
    return engine_pb2.Command(id=command.id, after=command.after, reason=command.reason, **given)


def bodies(message: type[Message]) -> list[Any]:
    return list(message.DESCRIPTOR.oneofs_by_name["body"].fields)


@given(values(commands.Command).filter(lambda command: command.body is not None))
def test_a_command_arrives_as_it_was_sent(command: commands.Command) -> None:
    assert command_from(engine_pb2.Command.FromString(command_to(command).SerializeToString())) == command


@given(values(reports.Report))
def test_a_report_says_on_the_wire_what_it_says_here(report: reports.Report) -> None:
    kinds = {field.message_type.name: field.name for field in bodies(engine_pb2.Report)}
    sent: Any = wire(report)
    expected = engine_pb2.Report(**{kinds[sent.DESCRIPTOR.name]: sent})
    assert engine_pb2.Report.FromString(report_to(report).SerializeToString()) == expected


@given(values(reports.Token))
def test_a_token_says_on_the_wire_what_it_says_here(token: reports.Token) -> None:
    assert gateway_pb2.Token.FromString(token_to(token).SerializeToString()) == wire(token)


@given(values(catalog.ModelSpec))
def test_a_model_reaches_the_next_scheduler_as_the_last_one_sent_it(spec: catalog.ModelSpec) -> None:
    assert nouns.spec_from(nouns.spec_to(spec)) == spec


@pytest.mark.parametrize(
    "kind", [kind for kind in MESSAGES if kind is not commands.Open], ids=lambda kind: kind.__name__
)
def test_a_type_has_the_fields_of_its_message(kind: type) -> None:
    assert fields(kind) == set(MESSAGES[kind].DESCRIPTOR.fields_by_name)


def test_an_open_has_the_fields_of_its_message_and_of_its_parts() -> None:
    wanted = set(engine_pb2.Open.DESCRIPTOR.fields_by_name) - {"limits"} | {"max_tokens"}
    assert fields(commands.Open) == wanted
    assert set(model_pb2.Limits.DESCRIPTOR.fields_by_name) == set(LIMITS)
    asked = set(model_pb2.Sampling.DESCRIPTOR.fields_by_name) | set(LIMITS) - {"max_tokens"}
    assert fields(SamplingParams) == asked


def test_a_source_has_the_kinds_of_its_message() -> None:
    kinds = [field.name for field in model_pb2.ModelSource.DESCRIPTOR.oneofs_by_name["kind"].fields]
    assert sorted(kinds) == sorted(["directory", *SOURCES.values()])
    assert fields(catalog.DirectorySource) == set(model_pb2.ModelSource.DESCRIPTOR.fields_by_name) - set(
        SOURCES.values()
    )


def test_every_body_of_a_command_and_of_a_report_is_known() -> None:
    assert set(READERS) == {field.name for field in bodies(engine_pb2.Command)}
    assert set(WRITERS) == set(get_args(reports.Report))
    assert len(WRITERS) == len(bodies(engine_pb2.Report))
    assert fields(commands.Command) == {"body", "id", "after", "reason"}
    outside = set(engine_pb2.Command.DESCRIPTOR.fields_by_name) - set(READERS)
    assert outside == {"id", "after", "reason"}


@pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
def test_an_enumeration_has_the_values_of_its_message(kind: type[Enum]) -> None:
    assert {one for one in CODES[kind] if one is not None} == set(kind)
    assert set(CODES[kind].values()) | {0} == set(ENUMS[kind].values())
    for one, code in CODES[kind].items():
        assert one is None or ENUMS[kind].Name(code).endswith(f"_{one.name}")


def test_a_command_of_a_kind_from_the_future_has_no_body() -> None:
    assert command_from(engine_pb2.Command(id=3, after=[1, 2])) == commands.Command(3, None, (1, 2))
