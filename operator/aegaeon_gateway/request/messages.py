"""Messages of a chat: what people write, and what clients send back of earlier answers as they dumped it."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal

import orjson
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

_LONG_NUMBER = re.compile(r"\d{19}")
ToolName = Annotated[str, Meta(min_length=1, max_length=128)]


class TextPart(Struct, forbid_unknown_fields=True, frozen=True):
    """A content part; other kinds (images, audio) are not served."""

    type: Literal["text"]
    text: str
    cache_control: Raw | UnsetType = UNSET
    annotations: Raw | UnsetType = UNSET


class Called(Struct, forbid_unknown_fields=True, frozen=True):
    """The function of a call, as an answer gave it. `arguments`: JSON as text."""

    name: ToolName
    arguments: str


class ToolCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A call that the assistant made."""

    function: Called
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    provider_specific_fields: Raw | UnsetType = UNSET


class Message(Struct, forbid_unknown_fields=True, frozen=True):
    """One message of a chat. What only describes an answer (`annotations` and below) does not reach the template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    function_call: None = None
    audio: None = None
    annotations: Raw | UnsetType = UNSET
    images: Raw | UnsetType = UNSET
    provider_specific_fields: Raw | UnsetType = UNSET
    thinking_blocks: Raw | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.content is None and self.role != "assistant":
            raise ValueError("content is missing")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls are of assistant messages alone")

    @property
    def text(self) -> str:
        """The content as one string, its parts on lines of their own."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    def for_template(self) -> dict[str, Any]:
        """As templates expect it; OpenAI's `developer` is what every template calls `system`."""
        message: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if (reasoning := self.reasoning_content or self.reasoning) is not None:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [_call_for_template(call) for call in self.tool_calls]
        return message


class FunctionDefinition(Struct, forbid_unknown_fields=True, frozen=True):
    """A function that a model may call. `parameters`: a JSON Schema."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """Without what the client left out, as templates print it as it is."""
        fields = {"description": self.description, "parameters": self.parameters}
        return {"name": self.name, **{name: value for name, value in fields.items() if value is not None}}


class Tool(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool of a request; functions alone are served."""

    function: FunctionDefinition
    type: Literal["function"] = "function"

    def for_template(self) -> dict[str, Any]:
        """As templates expect it."""
        return {"type": self.type, "function": self.function.for_template()}


class NamedFunction(Struct, forbid_unknown_fields=True, frozen=True):
    """The name of one tool."""

    name: ToolName


class NamedTool(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="function"):
    """A `tool_choice` of one function."""

    function: NamedFunction


class ToolReference(Struct, forbid_unknown_fields=True, frozen=True):
    """One of the request's tools, by its name."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(Struct, forbid_unknown_fields=True, frozen=True):
    """Some of the request's tools. Under `auto` any of them may be called, under `required` one at least is."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Meta(min_length=1)]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.function.name for tool in self.tools)


class AllowedChoice(Struct, forbid_unknown_fields=True, frozen=True, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` of some of the tools."""

    allowed_tools: AllowedTools


def _call_for_template(call: ToolCall) -> dict[str, Any]:
    """Templates print arguments as JSON, or item by item: they always get an object."""
    arguments = _object_of(call.function.arguments)
    named = {} if call.id is None else {"id": call.id}
    return {**named, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def _object_of(arguments: str) -> dict[str, Any]:
    """Empty for nothing; what is no object, as a model that was cut off leaves it, is the one entry of an object."""
    try:
        # orjson makes floats of integers over 64 bits
        parsed = json.loads(arguments) if _LONG_NUMBER.search(arguments) else orjson.loads(arguments)
    except (ValueError, RecursionError):
        parsed = arguments.strip()
    if isinstance(parsed, dict):
        return parsed
    return {"arguments": parsed} if parsed else {}
