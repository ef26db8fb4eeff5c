"""The schema of tool calls: what it allows are calls of the tools with arguments that their own schemas allow."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from byte_tokenizer import byte_tokenizer

from aegaeon_gateway.request.tool_schema import Tool, call_schema, calls_schema
from aegaeon_proto.constraints import fault
from aegaeon_proto.engine.sampling import ConstraintKind

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
TOOLS = [
    Tool("weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
    Tool("list", {**NODE, "$defs": {"node": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}}),
    Tool("quote", {"type": "object", "properties": {"$ref": {"enum": [{"$ref": "#/x"}]}}, "required": ["$ref"]}),
    Tool("now", None),
]
GOOD: list[dict[str, Any]] = [
    {"name": "weather", "arguments": {"city": "Bern"}},
    {"name": "list", "arguments": {"next": {"next": None}}},
    {"name": "quote", "arguments": {"$ref": {"$ref": "#/x"}}},
    {"name": "now", "arguments": {}},
]
BAD: list[dict[str, Any]] = [
    {"name": "weather", "arguments": {}},
    {"name": "weather", "arguments": {"city": 3}},
    {"name": "list", "arguments": {"next": {"next": 3}}},
    {"name": "quote", "arguments": {"$ref": {"$ref": "#/$defs/2/x"}}},
    {"name": "now", "arguments": {"at": 1}},
    {"name": "other", "arguments": {}},
    {"name": "now"},
]


def valid(schema: dict[str, Any], value: Any) -> bool:
    return jsonschema_rs.is_valid(schema, value)


def test_calls_are_of_the_tools_with_arguments_that_their_schemas_allow() -> None:
    schema = calls_schema(TOOLS, parallel=True)
    assert valid(schema, GOOD)
    assert not valid(schema, [])
    for call in BAD:
        assert not valid(schema, [call])


def test_one_call_is_one() -> None:
    schema = calls_schema(TOOLS, parallel=False)
    assert all(valid(schema, [call]) for call in GOOD)
    assert not valid(schema, GOOD)


@pytest.mark.parametrize("number", range(len(TOOLS)))
def test_a_named_tool_is_the_only_one_to_be_called(number: int) -> None:
    schema = call_schema(TOOLS[number])
    assert [valid(schema, call) for call in GOOD] == [at == number for at in range(len(TOOLS))]


def test_the_schemas_of_calls_compile() -> None:
    for schema in (calls_schema(TOOLS, parallel=True), *map(call_schema, TOOLS)):
        assert not fault(ConstraintKind.JSON_SCHEMA, json.dumps(schema), byte_tokenizer())
