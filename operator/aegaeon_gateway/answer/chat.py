"""Chat completions in OpenAI's shapes: chunks of a stream, cheap per token, and whole bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aegaeon_gateway.answer.body import ChoicesRenderer, Collected
from aegaeon_gateway.answer.call_ids import call_id
from aegaeon_gateway.answer.logprobs import chat_logprobs, prompt_logprobs
from aegaeon_gateway.answer.render import Envelope
from aegaeon_gateway.dialects.pieces import Call
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.generation.request import Request


class ChatRenderer(ChoicesRenderer):
    """chat.completion and chat.completion.chunk."""

    def __init__(self, request: Request) -> None:
        before, after = '"delta":{"content":', '},"logprobs":null,"finish_reason":null}]'
        super().__init__(request, Envelope(request, "chat.completion.chunk", before, after))

    def opening(self) -> bytes:
        prompt = {"prompt_token_ids": list(self._request.prompts[0].ids)} if self._ids else {}
        return b"".join(
            self._envelope.chunk(
                [_chat_choice(index, {"role": "assistant", "content": self._echoed})], delta=Delta(index), **prompt
            )
            for index in range(self._request.options.n)
        )

    def chunk(self, delta: Delta) -> bytes:
        if self._plain and not (delta.logprobs or delta.reasoning or delta.calls):
            events = self._envelope.plain(delta.index, delta.text) if delta.text else b""
        else:
            events = self._full_chunk(delta)
        if delta.finish:
            choice = _chat_choice(delta.index, {}, finish=delta.finish)
            events += self._envelope.chunk([{**choice, "stop_reason": delta.stop_reason}], delta=delta)
        return events

    def _full_chunk(self, delta: Delta) -> bytes:
        """An event for each kind of new piece; logprobs and token ids are with the first."""
        deltas: list[dict[str, Any]] = []
        if delta.reasoning:
            deltas.append({"reasoning_content": delta.reasoning})
        if delta.text or not (delta.reasoning or delta.calls):
            deltas.append({"content": delta.text})
        if delta.calls:
            deltas.append({"tool_calls": [*self._call_deltas(delta)]})
        choices = [_chat_choice(delta.index, piece) for piece in deltas]
        choices[0]["logprobs"] = self._logprobs(delta)
        if self._ids:
            choices[0]["token_ids"] = delta.tokens
        return b"".join(self._envelope.chunk([choice], delta=delta) for choice in choices)

    def _call_deltas(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """Whole calls, beginnings, and what goes on with the call before."""
        at = delta.calls_before - 1
        for call in delta.calls:
            if call.name:
                at += 1
                yield {"index": at, **self._call(delta.index, at, call)}
            else:
                yield {"index": at, "function": {"arguments": call.arguments}}

    def _call(self, index: int, at: int, call: Call) -> dict[str, Any]:
        return {
            "id": call_id(self._request, f"{index}/{at}"),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        prompt: dict[str, Any] = {"prompt_token_ids": list(self._request.prompts[0].ids)} if self._ids else {}
        if (count := self._request.options.prompt_logprob_count) is not None:
            prompt["prompt_logprobs"] = prompt_logprobs(self._named, self._body.prompt_of(0), count)
        head = {**self._envelope.head, "object": "chat.completion"}
        return self._body.pieces(head, self._whole, usage, prompt)

    def _whole(self, choice: Collected) -> dict[str, Any]:
        content: str | None = self._echoed + choice.text
        if choice.calls and not content:
            content = None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self._request.options.reasoning:
            message["reasoning_content"] = choice.reasoning or None
        if choice.calls:
            message["tool_calls"] = [self._call(choice.index, at, call) for at, call in enumerate(choice.calls)]
        ids = {"token_ids": choice.tokens} if self._ids else {}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish,
            "stop_reason": choice.stop_reason,
            **ids,
        }

    @property
    def _echoed(self) -> str:
        return self._request.texts[0] if self._request.options.echo else ""

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self._count is None:
            return None
        return chat_logprobs(self._named, delta.logprobs, self._count)


def _chat_choice(
    index: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
