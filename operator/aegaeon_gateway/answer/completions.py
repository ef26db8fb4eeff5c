"""Completions in OpenAI's shapes: chunks of a stream, cheap per token, and whole bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aegaeon_gateway.answer.body import ChoicesRenderer, Collected
from aegaeon_gateway.answer.logprobs import completion_logprobs, prompt_entries, prompt_logprobs
from aegaeon_gateway.answer.render import Envelope
from aegaeon_gateway.generation.output import Delta, TokenLogprob, Usage
from aegaeon_gateway.generation.request import Request


class CompletionRenderer(ChoicesRenderer):
    """text_completion, whole and in chunks. What is echoed of a prompt is part of its choice's first delta."""

    def __init__(self, request: Request) -> None:
        after = ',"logprobs":null,"finish_reason":null}]'
        super().__init__(request, Envelope(request, "text_completion", '"text":', after))
        self._echo = request.options.echo
        self._echoed_late = self._echo and request.options.prompt_logprobs

    def opening(self) -> bytes:
        if not self._echo or self._echoed_late:
            return b""
        choices = range(len(self._request.prompts) * self._request.options.n)
        return b"".join(self._envelope.plain(index, self._prompt(index)) for index in choices)

    def chunk(self, delta: Delta) -> bytes:
        if delta.finish or delta.logprobs or not self._plain or delta.prompt is not None:
            late = self._echoed_late and delta.prompt is not None
            text = self._prompt(delta.index) + delta.text if late else delta.text
            return self._envelope.chunk([self._choice(delta, text, self._logprobs(delta))], delta=delta)
        return self._envelope.plain(delta.index, delta.text) if delta.text else b""

    def pieces(self, usage: Usage) -> Iterator[bytes]:
        return self._body.pieces(self._envelope.head, self._whole, usage, {})

    def _whole(self, choice: Collected) -> dict[str, Any]:
        body = self._choice(choice, self._prompt(choice.index) + choice.text, choice.logprobs)
        if (count := self._request.options.prompt_logprob_count) is not None:
            body["prompt_logprobs"] = prompt_logprobs(self._named, choice.prompt, count)
        return body

    def _prompt(self, index: int) -> str:
        return self._request.texts[index // self._request.options.n] if self._echo else ""

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self._count is None:
            return None
        entries = delta.logprobs
        if self._echo:
            entries = [*self._echoed(delta), *_moved(entries, len(self._prompt(delta.index)))]
        return completion_logprobs(self._named, entries, self._count)

    def _echoed(self, delta: Delta) -> list[TokenLogprob]:
        if delta.prompt is None:
            return []
        prompt = self._request.prompts[delta.index // self._request.options.n]
        return prompt_entries(self._request.vocabulary, prompt.ids, delta.prompt)

    def _choice(self, delta: Delta | Collected, text: str, logprobs: object) -> dict[str, Any]:
        choice = {"index": delta.index, "text": text, "logprobs": logprobs, "finish_reason": delta.finish}
        if delta.finish:
            choice["stop_reason"] = delta.stop_reason
        if self._ids:
            prompt = self._request.prompts[delta.index // self._request.options.n]
            choice |= {"token_ids": delta.tokens, "prompt_token_ids": list(prompt.ids) if delta.finish else None}
        return choice


def _moved(entries: list[TokenLogprob], characters: int) -> list[TokenLogprob]:
    """Behind so many characters of a prompt."""
    return [TokenLogprob(e.token, e.logprob, e.top, e.start + characters) for e in entries]
