"""A request of Anthropic's Messages API as the chat that it is: one way to generate for both. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from aegaeon_gateway.request.anthropic_content import (
    AnthropicMessage,
    AnthropicTool,
    Block,
    Text,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from aegaeon_gateway.request.anthropic_schema import CountRequest, MessagesRequest
from aegaeon_gateway.request.messages import (
    Called,
    FunctionDefinition,
    Message,
    NamedFunction,
    NamedTool,
    TextPart,
    Tool,
    ToolCall,
)
from aegaeon_gateway.request.schema import ChatRequest
from aegaeon_gateway.request.structured import JsonSchema, ResponseFormat

NAMES = {
    "reasoning_effort": "output_config.effort",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""of a chat's parameters in requests of this kind, where they differ"""
_CHOICES: dict[str, Any] = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(request: CountRequest) -> ChatRequest:
    """The chat; what is not part of a prompt is only there for a MessagesRequest."""
    continued = request.messages[-1].role == "assistant"
    return ChatRequest(
        model=request.model,
        messages=[*_system(request.system), *(made for message in request.messages for made in _messages(message))],
        tools=None if request.tools is None else [_tool(tool) for tool in request.tools],
        add_generation_prompt=not continued,
        continue_final_message=continued,
        cache_salt=request.cache_salt,
        **_tool_choice(request),
        **_thinking(request),
        **_output(request),
        **(_sampling(request) if isinstance(request, MessagesRequest) else {}),
    )


def _system(system: str | list[Text] | None) -> Iterator[Message]:
    if system:
        yield Message(role="system", content=_content(system))


def _content(content: str | Sequence[Text | Block]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart("text", block.text) for block in content if isinstance(block, (Text, TextBlock))]


def _messages(message: AnthropicMessage) -> Iterator[Message]:
    """The assistant's is one; a user's results of tools are messages of their own, in their order."""
    if isinstance(message.content, str) or message.role != "user":
        yield (
            _assistant(message.content)
            if message.role == "assistant"
            else Message(role=message.role, content=_content(message.content))
        )
        return
    texts: list[TextPart] = []
    for block in message.content:
        if isinstance(block, TextBlock):
            texts.append(TextPart("text", block.text))
        elif isinstance(block, ToolResultBlock):
            if texts:
                yield Message(role="user", content=texts)
            texts = []
            yield Message(role="tool", content=_result(block), tool_call_id=block.tool_use_id)
    if texts or not message.content:
        yield Message(role="user", content=texts)


def _assistant(content: str | list[Block]) -> Message:
    if isinstance(content, str):
        return Message(role="assistant", content=content)
    thoughts = [block.thinking for block in content if isinstance(block, ThinkingBlock)]
    calls = [_call(block) for block in content if isinstance(block, ToolUseBlock)]
    return Message(
        role="assistant",
        content=_content(content),
        reasoning_content="\n".join(thoughts) if thoughts else None,
        tool_calls=calls or None,
    )


def _call(block: ToolUseBlock) -> ToolCall:
    return ToolCall(Called(block.name, json.dumps(block.input, ensure_ascii=False)), block.id)


def _result(block: ToolResultBlock) -> str | list[TextPart]:
    """Templates know of no failed calls: the text says it."""
    content = _content(block.content or "")
    if not block.is_error:
        return content
    return f"Error: {content}" if isinstance(content, str) else [TextPart("text", "Error:"), *content]


def _tool(tool: AnthropicTool) -> Tool:
    return Tool(FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict))


def _tool_choice(request: CountRequest) -> dict[str, Any]:
    choice = request.tool_choice
    if choice is None:
        return {}
    named = NamedTool(NamedFunction(choice.name)) if choice.name else _CHOICES[choice.type]
    return {"tool_choice": named, "parallel_tool_calls": not choice.disable_parallel_tool_use}


def _thinking(request: CountRequest) -> dict[str, Any]:
    thinking = request.thinking
    if thinking is None:
        return {"chat_template_kwargs": request.chat_template_kwargs}
    shown = thinking.type != "disabled" and thinking.display != "omitted"
    return {
        "chat_template_kwargs": {
            **(request.chat_template_kwargs or {}),
            "enable_thinking": thinking.type != "disabled",
        },
        "thinking_token_budget": thinking.budget_tokens,
        "include_reasoning": shown,
    }


def _output(request: CountRequest) -> dict[str, Any]:
    config = request.output_config
    if config is None:
        return {}
    schema = config.format and JsonSchema(schema=config.format.schema)
    return {
        "reasoning_effort": config.effort,
        "response_format": ResponseFormat("json_schema", schema) if schema else None,
    }


def _sampling(request: MessagesRequest) -> dict[str, Any]:
    return {
        "max_tokens": request.max_tokens,
        "stop": request.stop_sequences,
        "stream": request.stream,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
    }
