"""/tokenize, /detokenize and /version, as clients of vLLM's server know them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from gateway.conftest import HI, STRICT, TEXT


async def test_a_text_is_tokenized_and_back(pool: Any, tokenizer: Any) -> None:
    status, body, _ = await pool.post("/tokenize", {"model": "tiny", "prompt": TEXT, "return_token_strs": True})
    ids = tokenizer.encode(TEXT).ids
    assert (status, body["tokens"], body["count"], body["max_model_len"]) == (200, ids, len(ids), 256)
    assert body["token_strs"] == [tokenizer.id_to_token(token) for token in ids]
    status, body, _ = await pool.post("/detokenize", {"model": "tiny", "tokens": [1, *ids]})
    assert (status, body) == (200, {"prompt": "<s>" + TEXT})


async def test_a_chat_is_tokenized_as_it_would_be_answered(pool: Any) -> None:
    _, body, _ = await pool.post("/tokenize", {"model": "tiny", "messages": [HI]})
    await pool.chat()
    assert body["tokens"] == list(pool.peer.submits[0].prompt)
    assert body["token_strs"] is None
    _, shorter, _ = await pool.post("/tokenize", {"model": "tiny", "messages": [HI], "add_generation_prompt": False})
    assert shorter["tokens"] == body["tokens"][:-1]


@STRICT
async def test_what_cannot_be_tokenized_is_refused_by_name(pool: Any) -> None:
    for path, body, expected in (
        ("/tokenize", {"model": "tiny"}, (400, "prompt")),
        ("/tokenize", {"model": "tiny", "prompt": "a", "messages": [HI]}, (400, "prompt")),
        ("/tokenize", {"model": "tiny", "prompt": 3}, (400, "prompt")),
        ("/tokenize", {"model": "tiny", "prompt": "a" * 70_000}, (400, "prompt")),
        ("/tokenize", {"model": "tiny", "prompt": "a", "what": 1}, (400, "what")),
        ("/tokenize", {"model": "huge", "prompt": "a"}, (404, "model")),
        ("/detokenize", {"model": "tiny", "tokens": [384]}, (400, "tokens")),
        ("/detokenize", {"model": "tiny"}, (400, "tokens")),
    ):
        status, answer, _ = await pool.post(path, body)
        assert (status, answer["error"]["param"]) == expected, answer


async def test_the_version_is_the_packages(pool: Any) -> None:
    async with pool.http.get(f"{pool.url}/version") as response:
        assert await response.json() == {"version": version("aegaeon")}
