"""Messages in Anthropic's shapes: the events of a stream, whole messages, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from aegaeon_gateway.answer.blocks import Begun, Block, Blocks, Ended, Event, More
from aegaeon_gateway.answer.call_ids import call_id
from aegaeon_gateway.answer.render import named_event
from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.generation.request import Request

Json = dict[str, Any]

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_DELTAS = {"text": ("text_delta", "text"), "reasoning": ("thinking_delta", "thinking")}


class MessagesRenderer:
    """Implements Renderer."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._blocks = Blocks()

    def opening(self) -> bytes:
        usage = _usage(self._request.prompt_tokens, 0, 0)
        message = self._message([], usage)
        return named_event({"type": "message_start", "message": message})

    def chunk(self, delta: Delta) -> bytes:
        return b"".join(map(self._event, self._blocks.take(delta)))

    def ending(self, usage: Usage) -> bytes:
        ended = b"".join(map(self._event, self._blocks.end()))
        delta = {"type": "message_delta", "delta": self._reason(), "usage": _of(usage)}
        return ended + named_event(delta) + named_event({"type": "message_stop"})

    def failure(self, error: ApiError) -> bytes:
        return named_event(error_body(error))

    def keep(self, delta: Delta) -> int:
        for _ in self._blocks.take(delta):
            pass
        return self._blocks.nbytes

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        yield orjson.dumps(self._message([self._whole(block) for block in self._blocks.all], _of(usage)))

    def _message(self, content: list[Json], usage: Json) -> Json:
        return {
            "id": self._request.id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            "content": content,
            **self._reason(),
            "usage": usage,
        }

    def _reason(self) -> Json:
        """Why the answer ended; null while it has not."""
        finish, stop = self._blocks.finish, self._blocks.stop_reason
        if finish == "stop" and isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": None if finish is None else _REASONS[finish], "stop_sequence": None}

    def _event(self, event: Event) -> bytes:
        index = event.block.index
        match event:
            case Begun(block):
                begun = self._begun(block)
                return named_event({"type": "content_block_start", "index": index, "content_block": begun})
            case More(block, text):
                kind, name = _DELTAS.get(block.kind, ("input_json_delta", "partial_json"))
                return named_event({"type": "content_block_delta", "index": index, "delta": {"type": kind, name: text}})
            case Ended():
                return named_event({"type": "content_block_stop", "index": index})

    def _begun(self, block: Block) -> Json:
        if block.call is not None:
            made = call_id(self._request, str(block.index))
            return {"type": "tool_use", "id": made, "name": block.call.name, "input": {}}
        if block.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        return {"type": "text", "text": ""}

    def _whole(self, block: Block) -> Json:
        content = self._begun(block)
        if block.call is not None:
            content["input"] = orjson.Fragment(block.text)
        else:
            content["thinking" if block.kind == "reasoning" else "text"] = block.text
        return content


def error_body(error: ApiError) -> Json:
    """As Anthropic's clients understand it."""
    message = error.body()["error"]["message"]
    other = "api_error" if error.status >= 500 else "invalid_request_error"
    return {"type": "error", "error": {"type": _ERRORS.get(error.status, other), "message": message}}


def _of(usage: Usage) -> Json:
    return _usage(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])


def _usage(prompt: int, cached: int, output: int) -> Json:
    """Tokens of the prompt are counted apart: those whose KV cache was found, and the others."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }
