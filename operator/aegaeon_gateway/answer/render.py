"""Answers in OpenAI's shapes: chunks of a stream, cheap per token, and whole bodies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

import orjson

from aegaeon_gateway.answer.body import Body, Collected
from aegaeon_gateway.answer.logprobs import chat_logprobs, completion_logprobs
from aegaeon_gateway.errors import ApiError
from aegaeon_gateway.generation.output import Delta, Usage
from aegaeon_gateway.generation.request import Request

DONE = b"data: [DONE]\n\n"


class Renderer(Protocol):
    """One endpoint's shapes for one request."""

    def opening(self) -> bytes:
        """What comes before the first delta of a stream."""
        ...

    def chunk(self, delta: Delta) -> bytes:
        """The events of one delta; empty when the client would see nothing."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The event with the usage."""
        ...

    def keep(self, delta: Delta) -> int:
        """Render a delta for the answer as a whole; returns the bytes that are kept of all so far."""
        ...

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        """The whole answer of what was kept, a choice at a time."""
        ...


def event(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """An error inside a stream, as OpenAI clients understand it."""
    return event(error.body())


class _Envelope:
    """What all chunks of one request share, and the cheap form of the most frequent one.

    `plain(index, text)` is equal to `chunk` with that choice, but puts prebuilt bytes around the text.
    """

    def __init__(self, request: Request, kind: str, before: str, after: str) -> None:
        self.head: dict[str, Any] = {
            "id": request.id,
            "object": kind,
            "created": int(time.time()),
            "model": request.model,
        }
        self._tail: dict[str, Any] = {"usage": None} if request.options.include_usage else {}
        self._before = before
        self._after = after.encode() + (b',"usage":null' if self._tail else b"") + b"}\n\n"
        self._prefixes: dict[int, bytes] = {}

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event({**self.head, "choices": choices, **self._tail, **more})

    def plain(self, index: int, text: str) -> bytes:
        prefix = self._prefixes.get(index) or self._prefix(index)
        return prefix + orjson.dumps(text) + self._after

    def _prefix(self, index: int) -> bytes:
        head = orjson.dumps(self.head)[:-1]
        prefix = b"data: " + head + f',"choices":[{{"index":{index},{self._before}'.encode()
        self._prefixes[index] = prefix
        return prefix


class ChatRenderer:
    """chat.completion and chat.completion.chunk."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._count = request.options.logprob_count
        self._ids = request.options.return_token_ids
        after = '},"logprobs":null,"finish_reason":null}]'
        self._envelope = _Envelope(request, "chat.completion.chunk", '"delta":{"content":', after)
        self._body = Body(self._logprobs)

    def opening(self) -> bytes:
        prompt = {"prompt_token_ids": list(self._request.prompts[0].ids)} if self._ids else {}
        return b"".join(
            self._envelope.chunk([_chat_choice(index, {"role": "assistant", "content": ""})], **prompt)
            for index in range(self._request.options.n)
        )

    def chunk(self, delta: Delta) -> bytes:
        if not self._ids and not delta.logprobs:
            events = self._envelope.plain(delta.index, delta.text) if delta.text else b""
        else:
            events = self._full_chunk(delta)
        if delta.finish:
            events += self._envelope.chunk([_chat_choice(delta.index, {}, finish=delta.finish)])
        return events

    def _full_chunk(self, delta: Delta) -> bytes:
        choice = _chat_choice(delta.index, {"content": delta.text}, logprobs=self._logprobs(delta))
        if self._ids:
            choice["token_ids"] = delta.tokens
        return self._envelope.chunk([choice])

    def usage(self, usage: Usage) -> bytes:
        return self._envelope.chunk([], usage=usage)

    def keep(self, delta: Delta) -> int:
        return self._body.add(delta)

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        prompt = {"prompt_token_ids": list(self._request.prompts[0].ids)} if self._ids else {}
        head = {**self._envelope.head, "object": "chat.completion"}
        return self._body.pieces(head, self._whole, usage, prompt)

    def _whole(self, choice: Collected) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        ids = {"token_ids": choice.tokens} if self._ids else {}
        return {
            "index": choice.index,
            "message": message,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish,
            **ids,
        }

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self._count is None:
            return None
        return chat_logprobs(self._request.vocabulary, delta.logprobs, self._count)


class CompletionRenderer:
    """text_completion, whole and in chunks."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._echo = request.options.echo
        self._count = request.options.logprob_count
        self._ids = request.options.return_token_ids
        after = ',"logprobs":null,"finish_reason":null}]'
        self._envelope = _Envelope(request, "text_completion", '"text":', after)
        self._body = Body(self._logprobs)

    def opening(self) -> bytes:
        if not self._echo:
            return b""
        choices = range(len(self._request.prompts) * self._request.options.n)
        return b"".join(self._envelope.plain(index, self._prompt(index)) for index in choices)

    def chunk(self, delta: Delta) -> bytes:
        if delta.finish or delta.logprobs or self._ids:
            return self._envelope.chunk([self._choice(delta, delta.text, self._logprobs(delta))])
        return self._envelope.plain(delta.index, delta.text) if delta.text else b""

    def usage(self, usage: Usage) -> bytes:
        return self._envelope.chunk([], usage=usage)

    def keep(self, delta: Delta) -> int:
        return self._body.add(delta)

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        return self._body.pieces(self._envelope.head, self._whole, usage, {})

    def _whole(self, choice: Collected) -> dict[str, Any]:
        return self._choice(choice, self._prompt(choice.index) + choice.text, choice.logprobs)

    def _prompt(self, index: int) -> str:
        return self._request.texts[index // self._request.options.n] if self._echo else ""

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self._count is None:
            return None
        return completion_logprobs(self._request.vocabulary, delta.logprobs, self._count)

    def _choice(self, delta: Delta | Collected, text: str, logprobs: object) -> dict[str, Any]:
        choice = {"index": delta.index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish}
        if self._ids:
            prompt = self._request.prompts[delta.index // self._request.options.n]
            choice |= {"token_ids": delta.tokens, "prompt_token_ids": list(prompt.ids) if delta.finish else None}
        return choice


def _chat_choice(
    index: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None, finish: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
