"""Logprobs in the two shapes that OpenAI gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aegaeon_gateway.generation.output import TokenLogprob
from aegaeon_gateway.text.detokenize import Vocabulary


def chat_logprobs(vocabulary: Vocabulary, entries: Sequence[TokenLogprob], count: int) -> dict[str, Any]:
    """`choices[].logprobs` of chat completions; `count` likeliest tokens each."""
    content = [
        {
            **_chat_token(vocabulary, entry.token, entry.logprob),
            "top_logprobs": [_chat_token(vocabulary, token, logprob) for token, logprob in entry.top[:count]],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(vocabulary: Vocabulary, entries: Sequence[TokenLogprob], count: int) -> dict[str, Any]:
    """`choices[].logprobs` of completions; the chosen token is always among those of `top_logprobs`."""
    return {
        "tokens": [_name(vocabulary, entry.token) for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [_top(vocabulary, entry, count) for entry in entries] if count else None,
        "text_offset": [entry.start for entry in entries],
    }


def _chat_token(vocabulary: Vocabulary, token: int, logprob: float) -> dict[str, Any]:
    spelled = vocabulary.bytes_of(token)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}


def _top(vocabulary: Vocabulary, entry: TokenLogprob, count: int) -> dict[str, float]:
    likeliest = {_name(vocabulary, token): logprob for token, logprob in entry.top[:count]}
    likeliest.setdefault(_name(vocabulary, entry.token), entry.logprob)
    return likeliest


def _name(vocabulary: Vocabulary, token: int) -> str:
    """A token's text; where it is no whole character, its bytes: `bytes:\\xe2\\x82`."""
    spelled = vocabulary.bytes_of(token)
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
