"""A request of the Responses API as the chat that it is, and what its answer repeats of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.messages import (
    AllowedChoice,
    AllowedTools,
    Called,
    Message,
    NamedFunction,
    NamedTool,
    TextPart,
    Tool,
    ToolCall,
    ToolReference,
)
from aegaeon_gateway.request.responses_items import Item, Parts
from aegaeon_gateway.request.responses_schema import (
    AllowedResponseTools,
    AnyTool,
    CustomTool,
    NamedCustomTool,
    NamedResponseTool,
    NamespaceTool,
    ResponsesRequest,
    TextConfig,
)
from aegaeon_gateway.request.responses_tools import chat_tool, custom_arguments, model_name, request_tools
from aegaeon_gateway.request.sampling_fields import SamplingFields
from aegaeon_gateway.request.schema import MAX_TOOLS, ChatRequest
from aegaeon_gateway.request.structured import JsonSchema, ResponseFormat

NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}
"""of a chat's parameters in requests of this kind, where they differ"""
_SAME = (
    *SamplingFields.__struct_fields__,
    "model",
    "parallel_tool_calls",
    "structured_outputs",
    "chat_template_kwargs",
    "cache_salt",
    "include_reasoning",
)


def items_of(request: ResponsesRequest) -> list[Item]:
    """The input, whichever way it is written."""
    if isinstance(request.input, str):
        return [Item(role="user", content=request.input)]
    return request.input


def chat_of(request: ResponsesRequest, history: Iterable[Item]) -> ChatRequest:
    """The chat; `history`: the conversation that it goes on with. Raises InvalidRequestError."""
    if request.top_logprobs and not request.with_logprobs:
        message = "top_logprobs is allowed only with message.output_text.logprobs in include"
        raise InvalidRequestError(message, param="top_logprobs")
    if request.background:
        _check_background(request)
    instructions = [] if request.instructions is None else [Message(role="system", content=request.instructions)]
    messages = [*instructions, *_messages([*history, *items_of(request)])]
    if not messages:
        raise InvalidRequestError("input is empty; send an item, or instructions", param="input", code="invalid_value")
    return ChatRequest(
        **{name: getattr(request, name) for name in _SAME},
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        tools=None if request.tools is None else _tools(request.tools),
        tool_choice=_tool_choice(request),
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        response_format=_format(request.text),
        logprobs=request.with_logprobs,
        top_logprobs=request.top_logprobs if request.with_logprobs else None,
    )


def _tools(tools: Sequence[AnyTool]) -> list[Tool]:
    """Flatten tools: those within namespaces count as well. Raises InvalidRequestError."""
    made = [chat_tool(tool) for tool in request_tools(tools)]
    if len(made) > MAX_TOOLS:
        message = f"tools: {len(made)} are more than {MAX_TOOLS}, those of namespaces included"
        raise InvalidRequestError(message, param="tools", code="invalid_value")
    return made


def _check_background(request: ResponsesRequest) -> None:
    """Raises InvalidRequestError."""
    if request.stream:
        message = "stream is not supported here with background: GET /v1/responses/{id} says how far it is"
        raise InvalidRequestError(message, param="stream", code="unsupported_parameter")
    if request.store is False:
        message = "store: a response that is generated in the background is kept; leave it out"
        raise InvalidRequestError(message, param="store", code="invalid_value")


def echoed(request: ResponsesRequest) -> dict[str, Any]:
    """Fields of the request that the response repeats, where that is not what the chat's sampling says."""
    reasoning, text = request.reasoning, request.text
    return {
        "background": bool(request.background),
        "instructions": request.instructions,
        "metadata": request.metadata or {},
        "max_output_tokens": request.max_output_tokens,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "store": request.store is not False,
        "text": {"format": _repeated(text.format if text and text.format else {"type": "text"}), "verbosity": "medium"},
        "tool_choice": _repeated(request.tool_choice or "auto"),
        "tools": [_repeated_tool(tool) for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
    }


def _repeated(value: Any) -> Any:
    plain = msgspec.to_builtins(value)
    return {name: inner for name, inner in plain.items() if inner is not None} if isinstance(plain, dict) else plain


def _repeated_tool(tool: AnyTool) -> dict[str, Any]:
    if isinstance(tool, NamespaceTool):
        return {**_repeated(tool), "tools": [_repeated_tool(inner) for inner in tool.tools]}
    if isinstance(tool, CustomTool):
        return dict(_repeated(tool))
    return {"parameters": tool.parameters, "strict": tool.strict, **_repeated(tool)}


@dataclass(slots=True)
class _Turn:
    """The assistant's part between two messages of others: thoughts, a text, calls."""

    thoughts: list[str] = field(default_factory=list)
    content: str | list[TextPart] | None = None
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        return self.content is not None or bool(self.calls)

    def message(self) -> Iterator[Message]:
        """None where nothing was said."""
        if self.answered or self.thoughts:
            reasoning = "\n".join(self.thoughts) if self.thoughts else None
            yield Message(
                role="assistant",
                content=self.content or "",
                reasoning_content=reasoning,
                tool_calls=self.calls or None,
            )


def _messages(items: Iterable[Item]) -> Iterator[Message]:
    """Reasoning, the text behind it and the calls behind that are one message."""
    turn = _Turn()
    for item in items:
        calls = item.type in {"function_call", "custom_tool_call"}
        assistant = calls or item.type == "reasoning" or item.role == "assistant"
        begins = turn.answered and not calls
        if not assistant or begins:
            yield from turn.message()
            turn = _Turn()
        if assistant:
            _add(turn, item)
        elif item.output is not None:
            yield Message(role="tool", content=_content(item.output), tool_call_id=item.call_id)
        else:
            yield Message(role=item.role or "user", content=_content(item.content))
    yield from turn.message()


def _add(turn: _Turn, item: Item) -> None:
    match item.type:
        case "reasoning":
            thoughts = item.content or item.summary or ""
            turn.thoughts += [thoughts] if isinstance(thoughts, str) else [part.text_or_refusal for part in thoughts]
        case "function_call":
            called = Called(model_name(item.name or "", item.namespace), item.arguments or "")
            turn.calls.append(ToolCall(called, item.call_id))
        case "custom_tool_call":
            called = Called(model_name(item.name or "", item.namespace), custom_arguments(item.input or ""))
            turn.calls.append(ToolCall(called, item.call_id))
        case _:
            turn.content = _content(item.content)


def _content(content: str | Parts | None) -> str | list[TextPart]:
    if isinstance(content, str | None):
        return content or ""
    return [TextPart("text", part.text_or_refusal) for part in content]


def _tool_choice(request: ResponsesRequest) -> Any:
    match request.tool_choice:
        case NamedResponseTool(name=name) | NamedCustomTool(name=name):
            return NamedTool(NamedFunction(name))
        case AllowedResponseTools(mode=mode, tools=tools):
            allowed = [ToolReference(NamedFunction(tool.name)) for tool in tools]
            return AllowedChoice(AllowedTools(mode, allowed))
        case choice:
            return choice


def _format(text: TextConfig | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    format_ = text.format
    if format_.type != "json_schema":
        return ResponseFormat(format_.type, None)
    return ResponseFormat(format_.type, JsonSchema(format_.name, format_.schema, format_.strict, format_.description))
