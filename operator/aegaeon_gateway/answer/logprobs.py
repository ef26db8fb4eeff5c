"""Logprobs in the two shapes that OpenAI gives them, and in vLLM's for prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aegaeon_gateway.generation.output import UNLIKELY, TokenLogprob
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_proto.v1.gateway_pb2 import PromptLogprob


class Naming:
    """Names of tokens in logprobs. `as_ids`: `token_id:ID`, which is distinct for every token."""

    def __init__(self, vocabulary: Vocabulary, *, as_ids: bool = False) -> None:
        self._vocabulary = vocabulary
        self._as_ids = as_ids

    def name(self, token: int) -> str:
        """A token's text; where it is no whole character, its bytes: `bytes:\\xe2\\x82`."""
        if self._as_ids:
            return f"token_id:{token}"
        spelled = self.spelled(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def text(self, token: int) -> str:
        """The same, U+FFFD in place of what is no whole character."""
        return f"token_id:{token}" if self._as_ids else self.spelled(token).decode(errors="replace")

    def spelled(self, token: int) -> bytes:
        return self._vocabulary.bytes_of(token)


def chat_logprobs(named: Naming, entries: Sequence[TokenLogprob], count: int) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions; `count` likeliest tokens each."""
    content = [
        {
            **_chat_token(named, entry.token, entry.logprob),
            "top_logprobs": [_chat_token(named, token, logprob) for token, logprob in entry.top[:count]],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(named: Naming, entries: Sequence[TokenLogprob], count: int) -> dict[str, Any]:
    """`choices[].logprobs` of completions; the chosen token is always among those of `top_logprobs`."""
    return {
        "tokens": [named.name(entry.token) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_top(named, entry, count) for entry in entries] if count else None,
        "text_offset": [entry.start for entry in entries],
    }


def prompt_entries(vocabulary: Vocabulary, ids: Sequence[int], scored: Sequence[PromptLogprob]) -> list[TokenLogprob]:
    """A prompt's tokens as those of an output; nothing is known of the first. `scored`: of the others."""
    detokenizer, start = vocabulary.detokenizer(), 0
    entries = []
    for position, token in enumerate(ids):
        entry = TokenLogprob(token, None, (), start)
        if position:
            scored_token = scored[position - 1]
            top = tuple((likely.token, max(likely.logprob, UNLIKELY)) for likely in scored_token.top)
            entry = TokenLogprob(token, max(scored_token.logprob, UNLIKELY), top, start)
        entries.append(entry)
        start += len(detokenizer.feed(token))
    return entries


def prompt_logprobs(named: Naming, scored: Sequence[PromptLogprob], count: int) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` as vLLM gives them: for each token itself and the `count` likeliest, by id."""
    return [None, *(_ranked(named, scored_token, count) for scored_token in scored)]


def _ranked(named: Naming, scored_token: PromptLogprob, count: int) -> dict[str, Any]:
    ranked = [(likely.token, likely.logprob, rank) for rank, likely in enumerate(scored_token.top[:count], 1)]
    return {
        str(token): {"logprob": max(logprob, UNLIKELY), "rank": rank, "decoded_token": named.text(token)}
        for token, logprob, rank in [*ranked, (scored_token.token, scored_token.logprob, scored_token.rank)]
    }


def _chat_token(named: Naming, token: int, logprob: float | None) -> dict[str, Any]:
    return {"token": named.text(token), "logprob": logprob, "bytes": list(named.spelled(token))}


def _top(named: Naming, entry: TokenLogprob, count: int) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    likeliest = {named.name(token): logprob for token, logprob in entry.top[:count]}
    likeliest.setdefault(named.name(entry.token), entry.logprob)
    return likeliest
