"""Bodies of the gateway's other APIs, as far as the chats that they become."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from fuzz.gateway import WORDS, check_bounds
from fuzz.shape import json_input
from fuzz.target import One, Target

_TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {"type": "null"}}}}
MESSAGES = [
    {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]},
    {
        "model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "Be brief."}], "temperature": 0.7,
        "top_p": 0.9, "top_k": 5, "stop_sequences": ["a"], "stream": True, "tools": [_TOOL],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 5}, "metadata": {"user_id": "u"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "y", "is_error": True},
            ]},
        ],
    },
]  # fmt: skip

_FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
RESPONSES = [
    {"model": "m", "input": "Hello"},
    {
        "model": "m", "instructions": "Be brief.", "previous_response_id": "resp_1", "store": True,
        "metadata": {"a": "b"}, "max_output_tokens": 9, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 7,
        "stop": ["a"], "stream": True, "tools": [_FUNCTION], "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False, "reasoning": {"effort": "low", "summary": "auto"}, "top_logprobs": 2,
        "include": ["message.output_text.logprobs"], "truncation": "disabled",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "reasoning", "id": "1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
            {"type": "message", "role": "assistant", "id": "2", "status": "completed", "content": [
                {"type": "output_text", "text": "x", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "no"},
            ]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "y"},
        ],
    },
]  # fmt: skip


def _translated(documents: list[dict[str, Any]], endpoint: str, _: Path) -> One:
    """A body of another API, as far as what its chat's template gets."""
    from aegaeon_gateway.errors import ApiError
    from aegaeon_gateway.request.bodies import parsed_chat
    from aegaeon_gateway.request.parse import items_of_history

    words = (*WORDS, *(word for document in documents for word in document), "input", "id")

    def feed(data: bytes) -> None:
        try:
            made = parsed_chat(endpoint, json_input(data, documents, words))
        except ApiError as error:
            json.dumps(error.body()).encode()
            assert 400 <= error.status < 500, error
            return
        check_bounds(made.chat)
        if made.conversation:
            items_of_history(made.conversation)
        assert all(type(message.for_template()["content"]) is str for message in made.chat.messages)

    return feed


TARGETS = (
    Target("http_messages", partial(_translated, MESSAGES, "messages"), ("aegaeon_gateway",)),
    Target("http_responses", partial(_translated, RESPONSES, "responses"), ("aegaeon_gateway",)),
)
