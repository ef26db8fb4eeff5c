"""A whole stack answers what needs gateway and engine together: calls of tools, scored prompts, masked tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from clients.taught import ANSWER, GREETING, HELLO, QUESTION, RESULT, THOUGHT, teach
from stack.launch import manifests, running

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import Stack

TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
PROMPT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("taught")
    teach(directory)
    return directory


@pytest.fixture(scope="module")
def stack(taught: Path, four_models: dict[str, Path]) -> Iterator[Stack]:
    """Prompts are computed on one engine, answers on another."""
    models = {"taught": taught, "qwen3": four_models["qwen3"]}
    with running(manifests(models, prefill=1, decode=1)) as stack:
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with clients.client(stack.state.url) as client:
        yield client


def test_a_tool_is_called_and_its_result_answered(client: openai.OpenAI) -> None:
    asked: Any = {"model": "taught", "tools": [TOOL], "temperature": 0}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(messages=messages, **asked)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.model_dump()["reasoning_content"] == THOUGHT
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        streamed = stream.until_done().get_final_completion().choices[0].message
    assert [one.function.arguments for one in streamed.tool_calls] == [call.function.arguments]
    messages += [message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    assert client.chat.completions.create(messages=messages, **asked).choices[0].message.content == ANSWER


def test_a_required_call_follows_the_schema_of_its_tool(client: openai.OpenAI) -> None:
    """Whatever the model has learnt to write."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    tool: Any = {"type": "function", "function": {"name": "get_weather", "parameters": schema}}
    asked: Any = {"model": "taught", "messages": [{"role": "user", "content": GREETING}], "tools": [tool]}
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    for choice in (named, "required"):
        answer = client.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False, temperature=0)
        [call] = answer.choices[0].message.tool_calls
        assert json.loads(call.function.arguments)["city"] == "Rome"


def test_reasoning_ends_with_its_budget(client: openai.OpenAI) -> None:
    asked: Any = {"model": "taught", "tools": [TOOL], "messages": [{"role": "user", "content": QUESTION}]}
    for tokens, expected in ((3, False), (100, True)):
        body = {"thinking_token_budget": tokens}
        answer = client.chat.completions.create(**asked, temperature=0, max_tokens=60, extra_body=body)
        message = answer.choices[0].message.model_dump()
        assert THOUGHT.startswith(message["reasoning_content"])
        assert (message["reasoning_content"] == THOUGHT) == expected
        assert "think>" not in (message["content"] or "")


def test_a_prompt_is_scored_as_transformers_scores_it(client: openai.OpenAI, four_models: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    ids = PreTrainedTokenizerFast.from_pretrained(four_models["qwen3"]).encode(PROMPT)
    model = AutoModelForCausalLM.from_pretrained(four_models["qwen3"], dtype=torch.float32)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    for _ in range(2):  # what the first has left in the prefix cache has no logits
        answer = client.completions.create(model="qwen3", prompt=PROMPT, max_tokens=0, echo=True, logprobs=1)
        [choice] = answer.choices
        assert choice.text == PROMPT
        logprobs = choice.logprobs
        assert logprobs is not None
        assert logprobs.token_logprobs is not None
        assert len(logprobs.token_logprobs) == len(ids)
        for position, logprob in enumerate(logprobs.token_logprobs[1:]):
            assert logprob == pytest.approx(float(expected[position, ids[position + 1]]), abs=5e-4)


def test_masked_tokens_are_never_output(client: openai.OpenAI) -> None:
    asked: Any = {"model": "taught", "messages": [{"role": "user", "content": GREETING}], "temperature": 0}
    assert client.chat.completions.create(**asked).choices[0].message.content == HELLO
    bad = client.chat.completions.create(**asked, max_tokens=8, extra_body={"bad_words": ["Hello"]})
    assert HELLO not in (bad.choices[0].message.content or "")
    body = {"allowed_token_ids": [40, 41], "return_token_ids": True, "ignore_eos": True}
    masked = client.chat.completions.create(**asked, max_tokens=8, extra_body=body)
    assert set(masked.choices[0].model_dump()["token_ids"]) <= {40, 41}
