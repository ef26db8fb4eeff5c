"""Tools of the Responses API as functions of a chat, and back: namespaces are part of a name, a custom tool's text is
the one argument of a function. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aegaeon_gateway.request.messages import FunctionDefinition, Tool
from aegaeon_gateway.request.responses_schema import AnyTool, CustomTool, NamespaceTool, ResponseTool

INPUT = "input"
"""the argument of a custom tool"""
_TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class RequestTool:
    """A tool as the request has it, and its function. `name` is the request's, the function's the model's."""

    name: str
    namespace: str
    custom: bool
    function: FunctionDefinition


def model_name(name: str, namespace: str | None) -> str:
    """The name by which a model calls a tool: `mcp__files__` and `read` are mcp__files__read, `agents` and `spawn`
    agents__spawn."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("_") else f"{namespace}__{name}"


def request_tools(tools: Sequence[AnyTool]) -> Iterator[RequestTool]:
    """All that may be called, those of namespaces among them."""
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            yield from (_request_tool(inner, tool.name) for inner in tool.tools)
        else:
            yield _request_tool(tool, "")


def chat_tool(tool: RequestTool) -> Tool:
    return Tool(tool.function)


def custom_arguments(text: str) -> str:
    """The arguments of a call of a custom tool with this text."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The text of a call of a custom tool; what a model wrote instead of arguments is taken as it is."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get(INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def _request_tool(tool: ResponseTool | CustomTool, namespace: str) -> RequestTool:
    name = model_name(tool.name, namespace)
    if isinstance(tool, CustomTool):
        return RequestTool(tool.name, namespace, True, FunctionDefinition(name, _described(tool), _TEXT))
    function = FunctionDefinition(name, tool.description, tool.parameters, tool.strict)
    return RequestTool(tool.name, namespace, False, function)


def _described(tool: CustomTool) -> str | None:
    """With its grammar, which no engine holds the model to."""
    grammar = (tool.format or {}).get("definition")
    if not isinstance(grammar, str):
        return tool.description
    note = f"The input follows this grammar:\n{grammar}"
    return f"{tool.description}\n\n{note}" if tool.description else note
