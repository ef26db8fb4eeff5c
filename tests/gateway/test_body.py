"""An answer sent whole is rendered as it comes: the same bytes as at once, in pieces, within the budget."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_gateway.answer.body import Body, Collected
from aegaeon_gateway.generation.output import Delta, Usage

USAGE: Usage = {
    "prompt_tokens": 1,
    "completion_tokens": 2,
    "total_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 0},
}
TOKENS = st.lists(st.integers(0, 99), max_size=4)


def logprobs(tokens: list[int]) -> dict[str, Any]:
    return {"content": [{"token": str(token), "top": [token] * 2} for token in tokens], "refusal": None}


def render(choice: Collected) -> dict[str, Any]:
    return {"index": choice.index, "text": choice.text, "logprobs": choice.logprobs, "ids": choice.tokens}


@given(st.lists(st.tuples(st.integers(0, 3), st.text(max_size=4), TOKENS), min_size=1))
def test_pieces_joined_are_the_answer_rendered_at_once(deltas: list[tuple[int, str, list[int]]]) -> None:
    answer = Body(lambda delta: logprobs(delta.tokens))
    whole: dict[int, dict[str, Any]] = {}
    for index, text, tokens in deltas:
        answer.add(Delta(index, text, tokens))
        choice = whole.setdefault(index, {"index": index, "text": "", "logprobs": [], "ids": []})
        choice["text"] += text
        choice["logprobs"] += tokens
        choice["ids"] += tokens
    for choice in whole.values():
        choice["logprobs"] = logprobs(choice["logprobs"])
    pieces = list(answer.pieces({"id": "x"}, render, USAGE, {"more": [1]}))
    choices = [whole[index] for index in sorted(whole)]
    assert b"".join(pieces) == orjson.dumps({"id": "x", "choices": choices, "usage": USAGE, "more": [1]})
    assert len(pieces) == len(whole) + 2


def test_a_choice_without_logprobs_says_null() -> None:
    answer = Body(lambda delta: None)
    answer.add(Delta(0, "a", [1]))
    assert orjson.loads(b"".join(answer.pieces({"id": "x"}, render, USAGE, {})))["choices"][0]["logprobs"] is None


def test_buffered_bytes_are_counted() -> None:
    answer = Body(lambda delta: logprobs(delta.tokens))
    assert answer.add(Delta(0, "a", [1] * 100)) > 100 * len('{"token":"1","top":[1,1]}')
