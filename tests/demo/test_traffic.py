"""The demo's clients and its verdict, against a scripted peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web

from aegaeon_cli.demo.check import check
from aegaeon_cli.demo.traffic import Chat, Traffic, conversations
from aegaeon_cli.demo.verify import Verdict, chat_ids, eos_id, load_model, text_of, verify

MODELS = ("llama", "qwen2")


def _answer(directory: Path, question: str, tokens: int) -> list[int]:
    ids = torch.tensor([chat_ids(directory, question)])
    model = load_model(directory)
    out = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
    )
    return [int(token) for token in out[0][ids.shape[1] :]]


def _chunks(directory: Path, tokens: list[int]) -> list[tuple[str, list[int], str | None]]:
    """All text in the last chunk: what matters here is the whole."""
    finish = "stop" if tokens[-1] == eos_id(directory) else "length"
    empty: list[tuple[str, list[int], str | None]] = [("", [token], None) for token in tokens[:-1]]
    return [*empty, (text_of(directory, tokens), tokens[-1:], finish)]


async def test_answers_of_transformers_pass_with_exactly_the_promised_line(
    tiny_models: dict[str, Path], peer: Any
) -> None:
    def script(body: dict[str, Any]) -> Any:
        directory = tiny_models[body["model"]]
        return _chunks(directory, _answer(directory, body["messages"][0]["content"], 10))

    async with peer(script) as url:
        traffic = Traffic(url)
        await traffic.run([[Chat(model, f"question {i}") for i in range(4)] for model in MODELS])
        await traffic.close()
    found = check(traffic.exchanges, tiny_models)
    assert found.differences == ()
    assert found.sentence == "8 of 8 outputs identical to Hugging Face transformers"
    assert all(len(exchange.times) == len(exchange.tokens) for exchange in traffic.exchanges)


async def test_equal_answers_are_computed_once(
    tiny_models: dict[str, Path], peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []

    def counted(directory: Path, prompt: list[int], output: list[int]) -> Verdict:
        computed.append(len(output))
        return verify(directory, prompt, output)

    monkeypatch.setattr("aegaeon_cli.demo.check.verify", counted)
    directory = tiny_models["llama"]
    async with peer(lambda body: _chunks(directory, _answer(directory, "which?", 8))) as url:
        traffic = Traffic(url)
        for _ in range(3):
            await traffic.ask(Chat("llama", "which?"))
        await traffic.close()
    result = check(traffic.exchanges, tiny_models)
    assert (result.identical, result.positions, computed) == (3, 24, [8])


@pytest.mark.parametrize("fault", ["token", "text", "no ids"])
async def test_wrong_and_right_answers_are_distinguished(tiny_models: dict[str, Path], peer: Any, fault: str) -> None:
    directory = tiny_models["llama"]
    tokens = _answer(directory, "why?", 6)
    text = text_of(directory, tokens)
    if fault == "token":
        tokens[3] = (tokens[3] + 1) % 384
    answer = [(text + "!" * (fault == "text"), [] if fault == "no ids" else tokens, "length")]
    async with peer(lambda body: answer) as url:
        traffic = Traffic(url)
        await traffic.ask(Chat("llama", "why?"))
        await traffic.close()
    found = check(traffic.exchanges, tiny_models)
    assert found.identical == 0
    assert "llama, 'why?'" in found.differences[0]


async def test_a_refused_request_is_a_difference_with_the_servers_reason(
    tiny_models: dict[str, Path], peer: Any
) -> None:
    refusal = web.HTTPServiceUnavailable(text='{"error": {"message": "every engine is busy"}}')
    async with peer(lambda body: refusal) as url:
        traffic = Traffic(url)
        exchange = await traffic.ask(Chat("llama", "why?"))
        await traffic.close()
    assert "busy" in exchange.error
    assert check(traffic.exchanges, tiny_models).identical == 0


async def test_a_stream_that_just_stops_is_an_error(peer: Any) -> None:
    async with peer(lambda body: [("half", [4], None)]) as url:
        traffic = Traffic(url)
        exchange = await traffic.ask(Chat("llama", "why?"))
        await traffic.close()
    assert "finish reason" in exchange.error


def test_every_client_asks_all_models_and_most_requests_are_greedy() -> None:
    people = conversations({model: ["a?", "b?"] for model in ("one", "two", "three", "four")})
    chats = [chat for person in people for chat in person]
    assert len(people) == 8
    assert {chat.model for chat in chats} == {"one", "two", "three", "four"}
    assert sum(chat.temperature == 0 for chat in chats) >= 8
    assert any(chat.temperature > 0 for chat in chats)
