"""Tools and reasoning over HTTP: what the template gets, and how calls and reasoning come back, whole and streamed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import openai
import pytest
from gateway.conftest import EOS, HI, STRICT, model_status

from aegaeon_cli.demo import clients

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{% if message.tool_call_id %}({{ message.tool_call_id }}){% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and enable_thinking %}<think>\n"
    "{% endif %}{% endif %}{# answers: <think></think> #}"
)
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Sum of two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
SAID = f"<think>\nTwo numbers.\n</think>\n\nI add.\n{CALL}\n{CALL}"


@pytest.fixture
def hermes_directory(model_directory: Path, tmp_path: Path) -> Path:
    """Its template knows tools and reasoning."""
    directory = tmp_path / "hermes"
    shutil.copytree(model_directory, directory)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return directory


@pytest.fixture
async def spoken(pool: Any, hermes_directory: Path, tokenizer: Any) -> Any:
    """The pool with a model `hermes`, which says SAID."""
    hermes = model_status("hermes", hermes_directory)
    hermes.footprint.max_model_len = 4096
    pool.peer.publish([*pool.peer.models, hermes])
    await pool.until_loaded("hermes")
    say(pool, tokenizer, SAID)
    return pool


def say(pool: Any, tokenizer: Any, text: str) -> None:
    pool.peer.say = lambda submit, choice: [*tokenizer.encode(text).ids, EOS]


def prompt_of(pool: Any, tokenizer: Any) -> str:
    return str(tokenizer.decode(list(pool.peer.submits[-1].prompt), skip_special_tokens=False))


async def ask(pool: Any, **body: Any) -> dict[str, Any]:
    status, answer, _ = await pool.chat(model="hermes", **body)
    assert status == 200, answer
    [choice] = answer["choices"]
    return dict(choice)


def client_of(pool: Any) -> openai.AsyncOpenAI:
    return clients.async_client(pool.url)


async def streamed(pool: Any, **body: Any) -> tuple[dict[str, Any], str | None]:
    """The message that the chunks of a stream make, and the reason of its end."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    finish = None
    async with client_of(pool) as client:
        async for chunk in await client.chat.completions.create(model="hermes", messages=[HI], stream=True, **body):  # type: ignore[call-overload]  # of literals alone
            [choice] = chunk.choices
            delta = choice.delta.model_dump()
            message["content"] += delta["content"] or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta["tool_calls"] or []:
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({**call, "function": dict(call["function"])})
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            finish = choice.finish_reason or finish
    return message, finish


async def test_calls_and_reasoning_are_apart_from_the_content(spoken: Any) -> None:
    choice = await ask(spoken, tools=[ADD])
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("I add.", "Two numbers.")
    assert choice["finish_reason"] == "tool_calls"
    for call in message["tool_calls"]:
        assert (call["type"], call["function"]["name"]) == ("function", "add")
        assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    assert all(call["id"].startswith("call_") for call in message["tool_calls"])


async def test_a_stream_brings_the_same_message(spoken: Any) -> None:
    message, finish = await streamed(spoken, tools=[ADD])
    assert (message["content"], message["reasoning_content"], finish) == ("I add.", "Two numbers.", "tool_calls")
    assert [call["index"] for call in message["tool_calls"]] == [0, 1]
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    for call in message["tool_calls"]:
        assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}


async def test_arguments_of_calls_come_while_they_are_generated(spoken: Any, tokenizer: Any) -> None:
    say(spoken, tokenizer, CALL)
    spoken.peer.pace_s = 0.01
    deltas = []
    async with client_of(spoken) as client:
        stream = await client.chat.completions.create(model="hermes", messages=[HI], tools=[ADD], stream=True)  # type: ignore[call-overload]  # of literals alone
        async for chunk in stream:
            deltas += chunk.choices[0].delta.tool_calls or []
    first, *more = [call.model_dump(exclude_none=True) for call in deltas]
    assert first["function"]["name"] == "add"
    assert len(more) > 2
    assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in more)
    whole = (await ask(spoken, tools=[ADD]))["message"]["tool_calls"][0]["function"]["arguments"]
    assert first["function"]["arguments"] + "".join(call["function"]["arguments"] for call in more) == whole


async def test_one_call_is_shown_without_parallel_calls(spoken: Any) -> None:
    choice = await ask(spoken, tools=[ADD], parallel_tool_calls=False)
    assert len(choice["message"]["tool_calls"]) == 1
    message, _ = await streamed(spoken, tools=[ADD], parallel_tool_calls=False)
    assert len(message["tool_calls"]) == 1


async def test_without_tools_calls_are_text(spoken: Any, tokenizer: Any) -> None:
    for body in ({}, {"tools": [ADD], "tool_choice": "none"}, {"tools": []}):
        choice = await ask(spoken, **body)
        assert choice["message"]["content"] == f"I add.\n{CALL}\n{CALL}"
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"
        assert "<tools>" not in prompt_of(spoken, tokenizer)


async def test_what_is_no_call_is_content(spoken: Any, tokenizer: Any) -> None:
    broken = 'So.\n<tool_call>\n{"name": "add", "arguments": {"a": 1\n</tool_call>'
    say(spoken, tokenizer, broken)
    choice = await ask(spoken, tools=[ADD])
    assert (choice["message"]["content"], choice["finish_reason"]) == (broken, "stop")
    say(spoken, tokenizer, broken.replace('"arguments"', '"input"'))
    message, finish = await streamed(spoken, tools=[ADD])
    assert (message["content"], finish) == (broken.replace('"arguments"', '"input"'), "stop")


async def test_a_call_that_breaks_off_in_a_stream_is_shown_as_far_as_it_came(spoken: Any, tokenizer: Any) -> None:
    say(spoken, tokenizer, 'So.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, no}}\n</tool_call>')
    message, finish = await streamed(spoken, tools=[ADD])
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "add", "arguments": '{"a": 1, '}]
    assert (message["content"], finish) == ("So.no}}\n</tool_call>", "tool_calls")


async def test_a_call_alone_has_no_content(spoken: Any, tokenizer: Any) -> None:
    say(spoken, tokenizer, CALL)
    assert (await ask(spoken, tools=[ADD]))["message"]["content"] is None


async def test_the_template_gets_tools_calls_and_results(spoken: Any, tokenizer: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    strict = {"type": "function", "function": {**ADD["function"], "strict": True}}
    messages = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [call], "annotations": [], "function_call": None},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    await ask(spoken, messages=messages, tools=[strict], tool_choice="auto")
    prompt = prompt_of(spoken, tokenizer)
    shown = json.loads(prompt.partition("<tools>")[2].partition("</tools>")[0])
    assert shown == [ADD]
    assert '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>' in prompt
    assert "<|tool|>3(call_1)<|end|>" in prompt


NAMED = {"type": "function", "function": {"name": "add"}}
ONE = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


@pytest.mark.parametrize(("choice", "output", "count"), [(NAMED, ONE, 1), ("required", f"[{ONE}, {ONE}]", 2)])
async def test_a_choice_of_tools_constrains_the_output(
    spoken: Any, tokenizer: Any, choice: Any, output: str, count: int
) -> None:
    say(spoken, tokenizer, output)
    asked: dict[str, Any] = {"tools": [ADD], "tool_choice": choice}
    answer = await ask(spoken, **asked)
    message, finish = await streamed(spoken, **asked)
    assert (answer["finish_reason"], finish) == ("tool_calls", "tool_calls")
    for one in (answer["message"], message):
        assert not one["content"]
        assert [json.loads(call["function"]["arguments"]) for call in one["tool_calls"]] == [{"a": 1, "b": 2}] * count
    constraint = spoken.peer.submits[-1].sampling.constraint
    schema = json.loads(constraint.text)
    assert schema["$defs"]["0"] == ADD["function"]["parameters"]
    assert list(constraint.end_ids) == [EOS]
    cut = await ask(spoken, **asked, max_tokens=5)
    assert cut["finish_reason"] == "length"
    assert output.startswith(cut["message"]["content"])


async def test_an_output_of_a_form_is_no_reasoning(spoken: Any, tokenizer: Any) -> None:
    say(spoken, tokenizer, '{"a": 1}')
    form = {"response_format": {"type": "json_object"}, "reasoning_effort": "high"}
    assert (await ask(spoken, **form))["message"]["content"] == '{"a": 1}'


async def test_reasoning_is_hidden_on_request(spoken: Any) -> None:
    choice = await ask(spoken, include_reasoning=False)
    assert not choice["message"]["reasoning_content"]
    assert "Two numbers" not in choice["message"]["content"]


async def test_a_prompt_that_opens_reasoning_is_followed_by_reasoning(spoken: Any, tokenizer: Any) -> None:
    say(spoken, tokenizer, "Two numbers.\n</think>\n\n3")
    for body in ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"enable_thinking": True}}):
        message = (await ask(spoken, **body))["message"]
        assert (message["content"], message["reasoning_content"]) == ("3", "Two numbers.")
        assert prompt_of(spoken, tokenizer).endswith("<think>\n")
    await ask(spoken, reasoning_effort="none")
    assert prompt_of(spoken, tokenizer).endswith("<|assistant|>")


async def test_a_budget_of_reasoning_reaches_the_engine_as_marks(spoken: Any, tokenizer: Any) -> None:
    await ask(spoken, thinking_token_budget=7, reasoning_effort="low")
    budget = spoken.peer.submits[-1].sampling.reasoning
    assert (budget.tokens, budget.inside) == (7, True)
    assert tokenizer.decode(list(budget.opening.tokens)) == "<think>"
    assert tokenizer.decode(list(budget.closing.tokens)) == "</think>"
    await ask(spoken, thinking_token_budget=-1)
    assert not spoken.peer.submits[-1].sampling.HasField("reasoning")


@STRICT
async def test_what_cannot_be_done_with_tools_is_refused_by_name(spoken: Any) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    for model, body, param in (
        ("hermes", {"tools": [ADD], "tool_choice": {**named, "function": {"name": "sub"}}}, "tool_choice"),
        ("hermes", {"tools": [ADD], "tool_choice": named, "response_format": {"type": "json_object"}}, "tool_choice"),
        ("hermes", {"tools": [ADD], "tool_choice": named, "thinking_token_budget": 3}, "thinking_token_budget"),
        ("hermes", {"tools": [ADD], "tool_choice": named, "ignore_eos": True}, "ignore_eos"),
        ("hermes", {"tool_choice": "required"}, "tool_choice"),
        ("hermes", {"tools": [ADD], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ("hermes", {"tools": [{"type": "function"}]}, "tools[0].function"),
        ("hermes", {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ("tiny", {"tools": [ADD]}, "tools"),
        ("tiny", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("tiny", {"thinking_token_budget": 5}, "thinking_token_budget"),
    ):
        status, answer, _ = await spoken.chat(**{"model": model, **body})
        assert (status, answer["error"]["param"]) == (400, param), (body, answer)
    assert (await spoken.chat(reasoning_effort="none"))[0] == 200


async def test_a_manifest_says_how_a_model_speaks(spoken: Any, tokenizer: Any) -> None:
    [tiny, hermes] = spoken.peer.models
    hermes.spec.tool_calls, hermes.spec.reasoning = "llama3", "none"
    spoken.peer.publish([tiny, hermes])
    await spoken.until_models(lambda models: models["hermes"].spec.tool_calls == "llama3")
    say(spoken, tokenizer, '{"name": "add", "parameters": {"a": 1, "b": 2}}')
    assert [call["function"]["name"] for call in (await ask(spoken, tools=[ADD]))["message"]["tool_calls"]] == ["add"]
    say(spoken, tokenizer, SAID)
    assert (await ask(spoken, tools=[ADD]))["message"]["content"] == SAID
