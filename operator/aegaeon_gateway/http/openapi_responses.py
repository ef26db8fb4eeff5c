"""Answers of OpenAI's Responses API, for the OpenAPI description."""

from __future__ import annotations

from aegaeon_gateway.http.openapi_shapes import COUNT, STRING, Json, fields, nullable

_STATUS: Json = {"enum": ["in_progress", "completed", "incomplete", "failed", "cancelled"]}


def answers() -> dict[str, Json]:
    """Schemas by name."""
    usage = fields(
        input_tokens=COUNT, input_tokens_details=fields(cached_tokens=COUNT, cache_write_tokens=COUNT),
        output_tokens=COUNT, output_tokens_details=fields(reasoning_tokens=COUNT), total_tokens=COUNT,
    )  # fmt: skip
    anything: Json = {"type": "object"}
    response = fields(
        id=STRING, object={"const": "response"}, created_at=COUNT, completed_at=nullable(COUNT), status=_STATUS,
        model=STRING, output={"type": "array", "items": {"anyOf": _items()}}, usage=nullable(usage),
        error=nullable(anything),
        incomplete_details=nullable(fields(reason={"const": "max_output_tokens"})), instructions=nullable(STRING),
        metadata=anything, previous_response_id=nullable(STRING), parallel_tool_calls={"type": "boolean"},
        tools={"type": "array", "items": anything}, tool_choice={"anyOf": [STRING, anything]}, text=anything,
        reasoning=anything, temperature={"type": "number"}, top_p={"type": "number"}, store={"type": "boolean"},
        max_output_tokens=nullable(COUNT), background={"type": "boolean"}, truncation={"const": "disabled"},
    )  # fmt: skip
    deleted = fields(id=STRING, object={"const": "response"}, deleted={"const": True})
    items = fields(
        object={"const": "list"}, data={"type": "array", "items": anything}, first_id=nullable(STRING),
        last_id=nullable(STRING), has_more={"type": "boolean"},
    )  # fmt: skip
    return {"Response": response, "DeletedResponse": deleted, "ItemList": items}


def _items() -> list[Json]:
    text = fields(type={"const": "output_text"}, text=STRING)
    thought = fields(type={"const": "reasoning_text"}, text=STRING)
    return [
        fields(
            type={"const": "message"}, id=STRING, status=_STATUS, role={"const": "assistant"},
            content={"type": "array", "items": text},
        ),
        fields(type={"const": "reasoning"}, id=STRING, content={"type": "array", "items": thought}),
        fields(type={"const": "function_call"}, id=STRING, call_id=STRING, name=STRING, arguments=STRING),
    ]  # fmt: skip
