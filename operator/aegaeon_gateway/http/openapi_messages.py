"""Answers of Anthropic's Messages API, for the OpenAPI description."""

from __future__ import annotations

from aegaeon_gateway.http.openapi_shapes import COUNT, STRING, Json, fields, nullable


def answers() -> dict[str, Json]:
    """Schemas by name."""
    usage = fields(
        input_tokens=COUNT, output_tokens=COUNT, cache_creation_input_tokens=COUNT, cache_read_input_tokens=COUNT
    )
    reasons = {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]}
    message = fields(
        id=STRING, type={"const": "message"}, role={"const": "assistant"}, model=STRING,
        content={"type": "array", "items": {"anyOf": _blocks()}},
        stop_reason=reasons, stop_sequence=nullable(STRING), usage=usage,
    )  # fmt: skip
    error = fields(type={"const": "error"}, error=fields(type=STRING, message=STRING))
    return {"Message": message, "TokenCount": fields(input_tokens=COUNT), "AnthropicError": error}


def _blocks() -> list[Json]:
    call = fields(type={"const": "tool_use"}, id=STRING, name=STRING, input={"type": "object"})
    thought = fields(type={"const": "thinking"}, thinking=STRING, signature=STRING)
    return [fields(type={"const": "text"}, text=STRING), thought, call]
