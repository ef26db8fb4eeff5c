"""Responses in OpenAI's shapes: whole, the events of a stream, and what is kept of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import blake2b
from itertools import count
from typing import Any

import orjson

from aegaeon_gateway.answer.blocks import Begun, Block, Blocks, Event, More
from aegaeon_gateway.answer.call_ids import call_id
from aegaeon_gateway.answer.logprobs import Naming, chat_logprobs
from aegaeon_gateway.answer.render import named_event
from aegaeon_gateway.conversations import Kept
from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.generation.output import Delta, TokenLogprob, Usage
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.request.responses_tools import custom_input
from aegaeon_gateway.workers.wire import ToolName

Json = dict[str, Any]

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_PARTS = {"reasoning": "reasoning_text", "text": "output_text"}


class ResponsesRenderer:
    """Implements Renderer. Every event has the next number."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._echoed: Json = orjson.loads(request.echoed)
        self._blocks = Blocks()
        self._numbers = count()
        self._created = int(time.time())
        self._named = Naming(request.vocabulary)
        self._last_events: bytes | None = None

    def opening(self) -> bytes:
        response = self._response("in_progress", None)
        return self._named_event("response.created", response=response) + self._named_event(
            "response.in_progress", response=response
        )

    def chunk(self, delta: Delta) -> bytes:
        return b"".join(map(self._event, self._blocks.take(delta)))

    def ending(self, usage: Usage) -> bytes:
        return self._ended() + self._named_event(f"response.{self._status}", response=self._whole(usage))

    def failure(self, error: ApiError) -> bytes:
        return self._named_event("response.failed", response=self._failed(error))

    def keep(self, delta: Delta) -> int:
        for _ in self._blocks.take(delta):
            pass
        return self._blocks.nbytes

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        yield orjson.dumps(self._whole(usage))

    def kept(self, usage: Usage) -> Kept | None:
        """The record of a complete answer; None where its request does not want it kept."""
        before = self._request.conversation
        if not before:
            return None
        response = self._whole(usage)
        return Kept(orjson.dumps(response), before[:-1] + b"," + orjson.dumps(response["output"])[1:])

    @property
    def background(self) -> bool:
        """No client waits for it."""
        return bool(self._echoed["background"])

    def begun(self, now: float) -> Kept:
        """The record of a response while it is generated; `now`: unix seconds."""
        return Kept(orjson.dumps(self._response("in_progress", None)), self._request.conversation, now)

    def ended_with(self, error: ApiError) -> Kept:
        """The record of a response that failed."""
        return Kept(orjson.dumps(self._failed(error)), self._request.conversation)

    def was_not_kept(self) -> None:
        """Say in the response that it is not stored, although its request wants it."""
        self._echoed["store"] = False

    # ---- the response ------------------------------------------------------------------------------------------------

    @property
    def _status(self) -> str:
        return "incomplete" if self._blocks.finish == "length" else "completed"

    def _whole(self, usage: Usage) -> Json:
        """Ends what is open."""
        self._ended()
        response = self._response(self._status, _usage(usage))
        response["output"] = [*map(self._item, self._blocks.all)]
        response["completed_at"] = int(time.time())
        if self._status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        return response

    def _failed(self, error: ApiError) -> Json:
        fields = error.body()["error"]
        response = {**self._response("failed", None), "output": [*map(self._item, self._blocks.all)]}
        response["error"] = {"code": fields["code"] or "server_error", "message": fields["message"]}
        return response

    def _response(self, status: str, usage: Json | None) -> Json:
        sampling = self._request.sampling
        return {
            "id": self._request.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "completed_at": None,
            "incomplete_details": None,
            "model": self._request.model,
            "output": [],
            "temperature": round(sampling.temperature, 6),
            "top_p": round(sampling.top_p, 6),
            "truncation": "disabled",
            "usage": usage,
            **self._echoed,
        }

    def _item(self, block: Block) -> Json:
        """As it is once it is complete."""
        cut = self._blocks.finish == "length" and block is self._blocks.all[-1]
        item = self._begun(block) | {"status": "incomplete" if cut else "completed"}
        if block.call is not None:
            custom = self._tool(block).custom
            item |= {"input": custom_input(block.text)} if custom else {"arguments": block.text}
        else:
            item["content"] = [self._part(block)]
        return item

    def _begun(self, block: Block) -> Json:
        item: Json = {"id": self._id(block), "status": "in_progress"}
        match block.kind:
            case "reasoning":
                return item | {"type": "reasoning", "summary": [], "content": [], "encrypted_content": None}
            case "text":
                return item | {"type": "message", "role": "assistant", "content": []}
        tool, made = self._tool(block), call_id(self._request, str(block.index))
        item |= {"type": "custom_tool_call", "input": ""} if tool.custom else {"type": "function_call", "arguments": ""}
        item |= {"namespace": tool.namespace} if tool.namespace else {}
        return item | {"call_id": made, "name": tool.name}

    def _tool(self, block: Block) -> ToolName:
        """The tool that a block calls, as the request names it."""
        assert block.call is not None
        return self._request.options.tool_names.get(block.call.name) or ToolName(block.call.name)

    def _part(self, block: Block, *, empty: bool = False) -> Json:
        part: Json = {"type": _PARTS[block.kind], "text": "" if empty else block.text}
        if block.kind == "text":
            part |= {"annotations": [], "logprobs": [] if empty else self._logprobs(block.logprobs)}
        return part

    def _id(self, block: Block) -> str:
        digest = blake2b(f"{self._request.id}/{block.index}".encode(), digest_size=16).hexdigest()
        return f"{_PREFIXES[block.kind]}_{digest}"

    def _logprobs(self, entries: list[TokenLogprob]) -> list[Json]:
        most = self._request.options.logprob_count
        content: list[Json] = [] if most is None else chat_logprobs(self._named, entries, most)["content"]
        return content

    # ---- events ------------------------------------------------------------------------------------------------------

    def _ended(self) -> bytes:
        """The events that end the last item, made once."""
        if self._last_events is None:
            self._last_events = b"".join(map(self._event, self._last()))
        return self._last_events

    def _last(self) -> Iterator[Event]:
        """An answer has one item at least."""
        yield from self._blocks.end()
        if not self._blocks.all:
            yield from self._blocks.add_empty_text()

    def _event(self, event: Event) -> bytes:
        block = event.block
        match event:
            case Begun():
                return self._begin(block)
            case More(_, text, logprobs):
                return self._more(block, text, logprobs)
        return self._end(block)

    def _begin(self, block: Block) -> bytes:
        added = self._named_event("response.output_item.added", output_index=block.index, item=self._begun(block))
        if block.call is not None:
            return added
        return added + self._of("response.content_part.added", block, part=self._part(block, empty=True))

    def _more(self, block: Block, text: str, logprobs: list[TokenLogprob]) -> bytes:
        match block.kind:
            case "reasoning":
                return self._of("response.reasoning_text.delta", block, delta=text)
            case "text":
                return self._of("response.output_text.delta", block, delta=text, logprobs=self._logprobs(logprobs))
        if self._tool(block).custom:  # its text is within the arguments: it is known at their end
            return b""
        return self._of("response.function_call_arguments.delta", block, delta=text)

    def _end(self, block: Block) -> bytes:
        item = self._item(block)
        if block.call is not None and self._tool(block).custom:
            text = item["input"]
            ended = self._of("response.custom_tool_call_input.delta", block, delta=text)
            ended += self._of("response.custom_tool_call_input.done", block, input=text)
        elif block.call is not None:
            name, arguments = item["name"], block.text
            ended = self._of("response.function_call_arguments.done", block, name=name, arguments=arguments)
        else:
            part = self._part(block)
            done = {"text": part["text"]} | ({"logprobs": part["logprobs"]} if block.kind == "text" else {})
            ended = self._of(f"response.{part['type']}.done", block, **done)
            ended += self._of("response.content_part.done", block, part=part)
        return ended + self._named_event("response.output_item.done", output_index=block.index, item=item)

    def _of(self, kind: str, block: Block, **more: Any) -> bytes:
        place = {} if block.call is not None else {"content_index": 0}
        return self._named_event(kind, item_id=self._id(block), output_index=block.index, **place, **more)

    def _named_event(self, kind: str, **more: Any) -> bytes:
        return named_event({"type": kind, "sequence_number": next(self._numbers), **more})


def _usage(usage: Usage) -> Json:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }
