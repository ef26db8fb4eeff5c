"""The output when a model must call a tool: the tools' schemas as one JSON schema. Pure.

`tool_choice: required` is an array of calls, a named tool one call. A call is {"name": ..., "arguments": {...}}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aegaeon_gateway.request.subschemas import Schema, changed

NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called. `parameters`: None where it takes none."""

    name: str
    parameters: Schema | None


def calls_schema(tools: Sequence[Tool], *, parallel: bool) -> Schema:
    """One call or more of any of these tools; exactly one unless `parallel`."""
    calls = [_call(tool, number) for number, tool in enumerate(tools)]
    bounds = {"minItems": 1} if parallel else {"minItems": 1, "maxItems": 1}
    return {"type": "array", "items": {"anyOf": calls}, **bounds, "$defs": _definitions(tools)}


def call_schema(tool: Tool) -> Schema:
    """One call of this tool."""
    return {**_call(tool, 0), "$defs": _definitions([tool])}


def _call(tool: Tool, number: int) -> Schema:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": {"$ref": f"#/$defs/{number}"}},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _definitions(tools: Sequence[Tool]) -> Schema:
    """Each tool's schema by number: what is not a key of theirs needs no escapes."""
    schemas = (NO_ARGUMENTS if tool.parameters is None else tool.parameters for tool in tools)
    return {str(number): _moved(schema, f"#/$defs/{number}") for number, schema in enumerate(schemas)}


def _moved(schema: Schema, to: str) -> Schema:
    """A schema whose references to places in itself are right where it lies at `to`."""

    def referring(inner: Schema) -> Schema:
        reference = inner.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return inner
        return {**inner, "$ref": to + reference[1:]}

    moved: Schema = changed(schema, referring)
    return moved
