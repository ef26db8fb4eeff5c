"""Anthropic's Messages API over HTTP: the chat that a request becomes, and the message that comes back."""

from __future__ import annotations

import json
from typing import Any

from gateway.conftest import HI, STRICT, TEXT
from gateway.test_tools import ADD, hermes_directory, prompt_of, say, spoken

from aegaeon_gateway.request.anthropic_schema import MESSAGES, CountRequest, MessagesRequest
from aegaeon_gateway.request.bodies import parsed_chat

__all__ = ["hermes_directory", "spoken"]  # fixtures

TOOL = {"name": "add", "description": "Sum of two numbers.", "input_schema": ADD["function"]["parameters"]}
USE = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}}
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "1 + 2?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""},
                                      {"type": "text", "text": "I add."}, USE]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "3"},
                                 {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}}]},
]  # fmt: skip
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 2?"},
    {"role": "assistant", "content": "I add.", "reasoning_content": "Hm.",
     "tool_calls": [{"id": "toolu_1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]},
    {"role": "tool", "tool_call_id": "toolu_1", "content": "3"},
    {"role": "user", "content": "So?"},
]  # fmt: skip
ASKED = {"model": "hermes", "max_tokens": 300, "messages": [HI], "tools": [TOOL]}


async def ask(pool: Any, **body: Any) -> dict[str, Any]:
    status, answer, _ = await pool.post("/v1/messages", {"model": "tiny", "max_tokens": 200, "messages": [HI], **body})
    assert status == 200, answer
    return dict(answer)


async def events(pool: Any, **body: Any) -> list[tuple[str, Any]]:
    async with pool.http.post(f"{pool.url}/v1/messages", json={**ASKED, "stream": True, **body}) as response:
        assert response.status == 200, await response.text()
        parts = [part for part in (await response.text()).strip().split("\n\n") if not part.startswith(": ")]
    return [(part.split("\n")[0].removeprefix("event: "), json.loads(part.split("\ndata: ")[1])) for part in parts]


async def test_a_message_is_answered_with_its_usage(pool: Any) -> None:
    answer = await ask(pool, system="Be brief.")
    assert answer["content"] == [{"type": "text", "text": TEXT}]
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tiny")
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["input_tokens"] == len(pool.peer.submits[0].prompt)
    assert answer["usage"]["output_tokens"] == len(pool.peer.say(pool.peer.submits[0], 0))


async def test_the_prompt_is_that_of_the_same_chat_and_is_counted_alike(spoken: Any) -> None:
    asked = {"model": "hermes", "messages": TURNS, "system": [{"type": "text", "text": "Be brief."}], "tools": [TOOL]}
    status, counted, _ = await spoken.post("/v1/messages/count_tokens", asked)
    assert status == 200
    await ask(spoken, **asked)
    status, _, _ = await spoken.chat(model="hermes", messages=CHAT, tools=[ADD])
    assert status == 200
    ours, chat = (list(submit.prompt) for submit in spoken.peer.submits)
    assert ours == chat
    assert counted == {"input_tokens": len(ours)}


async def test_the_end_has_its_reason(pool: Any) -> None:
    answer = await ask(pool, max_tokens=1)
    assert answer["stop_reason"] == "max_tokens"
    answer = await ask(pool, stop_sequences=["quick"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "quick")
    assert answer["content"][0]["text"] == TEXT.partition("quick")[0]


async def test_thoughts_and_calls_are_blocks_whole_and_streamed(spoken: Any) -> None:
    answer = await ask(spoken, **ASKED)
    thought, text, *calls = answer["content"]
    assert thought == {"type": "thinking", "thinking": "Two numbers.", "signature": ""}
    assert text == {"type": "text", "text": "I add."}
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [("tool_use", "add", USE["input"])] * 2
    assert len({call["id"] for call in calls}) == 2
    assert answer["stop_reason"] == "tool_use"
    spoken.peer.pace_s = 0.01
    said = await events(spoken)
    assert [name for name, _ in said] == [data["type"] for _, data in said]
    assert (said[0][0], said[-2][0], said[-1][0]) == ("message_start", "message_delta", "message_stop")
    assert said[-2][1]["delta"]["stop_reason"] == "tool_use"
    assert said[-2][1]["usage"] == answer["usage"]
    assert sum("partial_json" in data.get("delta", {}) for _, data in said) > 2 * len(calls), "whole calls"
    assert joined(said) == [{**block, "id": ""} if "id" in block else block for block in answer["content"]]


def joined(said: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """The blocks that the events of a stream make, ids of calls left out; each begins, goes on and ends in its turn."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for name, data in said:
        match name:
            case "content_block_start":
                assert (data["index"], is_open) == (len(blocks), False)
                blocks.append({**data["content_block"]} | ({"id": ""} if "id" in data["content_block"] else {}))
                is_open = True
            case "content_block_delta":
                assert is_open
                kind, text = {**data["delta"]}.pop("type"), list(data["delta"].values())[1]
                field = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "id"}[kind]
                blocks[-1][field] += text
            case "content_block_stop":
                assert data["index"] == len(blocks) - 1
                is_open = False
                if "input" in blocks[-1]:
                    blocks[-1] |= {"input": json.loads(blocks[-1]["id"]), "id": ""}
    assert not is_open
    return blocks


async def test_the_template_gets_variables_and_thinking_says_more(spoken: Any, tokenizer: Any) -> None:
    variables = {"enable_thinking": True}
    await ask(spoken, model="hermes", chat_template_kwargs=variables)
    assert prompt_of(spoken, tokenizer).endswith("<think>\n")
    await ask(spoken, model="hermes", chat_template_kwargs=variables, thinking={"type": "disabled"})
    assert prompt_of(spoken, tokenizer).endswith("<|assistant|>")


async def test_thinking_says_what_the_template_and_the_client_get(spoken: Any, tokenizer: Any) -> None:
    await ask(spoken, **ASKED, thinking={"type": "enabled", "budget_tokens": 5})
    assert prompt_of(spoken, tokenizer).endswith("<think>\n")
    assert spoken.peer.submits[-1].sampling.reasoning.tokens == 5
    for thinking in ({"type": "disabled"}, {"type": "adaptive", "display": "omitted"}):
        answer = await ask(spoken, **ASKED, thinking=thinking)
        assert not any(block["type"] == "thinking" for block in answer["content"])
        assert prompt_of(spoken, tokenizer).endswith("<think>\n") == (thinking["type"] == "adaptive")


async def test_a_choice_of_tools_is_a_constraint_or_none(spoken: Any, tokenizer: Any) -> None:
    say(spoken, tokenizer, '[{"name": "add", "arguments": {"a": 1, "b": 2}}]')
    answer = await ask(spoken, **ASKED, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert [block["type"] for block in answer["content"]] == ["tool_use"]
    assert '"maxItems": 1' in spoken.peer.submits[-1].sampling.constraint.text
    await ask(spoken, **ASKED, tool_choice={"type": "tool", "name": "add"})
    assert '"const": "add"' in spoken.peer.submits[-1].sampling.constraint.text
    await ask(spoken, **ASKED, tool_choice={"type": "none"})
    assert "<tools>" not in prompt_of(spoken, tokenizer)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    await ask(spoken, model="hermes", output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(spoken.peer.submits[-1].sampling.constraint.text) == schema


async def test_a_last_message_of_the_assistant_is_continued(pool: Any, tokenizer: Any) -> None:
    await ask(pool, messages=[HI, {"role": "assistant", "content": "so"}])
    assert prompt_of(pool, tokenizer).endswith("<|assistant|>so")


@STRICT
async def test_what_asks_for_nothing_is_accepted_and_what_is_not_given_is_refused_by_name(pool: Any) -> None:
    required = {"model", "messages", "max_tokens"}
    every = dict.fromkeys([*MESSAGES.refused, *MESSAGES.no_effect, *MessagesRequest.__struct_encode_fields__])
    await ask(pool, **{name: None for name in every if name not in required})
    for name, refused in MESSAGES.refused.items():
        for neutral in refused.neutral:
            await ask(pool, **{name: neutral})
        status, body, _ = await pool.post("/v1/messages", {**ASKED, "model": "tiny", name: {"some": "thing"}})
        assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
        assert body["error"]["message"].startswith(f"{name} is not supported here")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 5000}, "maximum context length"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [USE]}]}, "blocks that messages of user do not have"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
    ({"tool_choice": {"type": "tool"}}, "name goes with type tool"),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens is not supported here"),
    ({"output_config": {"effort": "high"}}, "output_config.effort is not supported here"),
    ({"stop": "x"}, "stop is not a parameter known here"),
    ({"stop_sequences": "x"}, "stop_sequences: must be a list"),
]


@STRICT
async def test_a_refusal_names_the_parameter(pool: Any) -> None:
    for change, said in REFUSED:
        body = {"model": "tiny", "max_tokens": 9, "messages": [HI], **change}
        status, answer, headers = await pool.post("/v1/messages", body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), change
        assert said in answer["error"]["message"]
        assert headers["X-Request-Id"]


async def test_errors_have_anthropics_kinds(pool: Any) -> None:
    status, answer, _ = await pool.post("/v1/messages", {**ASKED, "model": "huge"})
    assert (status, answer["error"]["type"]) == (404, "not_found_error")
    async with pool.http.get(f"{pool.url}/v1/messages") as response:
        assert (response.status, (await response.json())["type"]) == (405, "error")
    status, answer, _ = await pool.post(
        "/v1/messages/count_tokens", {"model": "tiny", "messages": [HI], "stream": True}
    )
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")


def test_what_only_counts_has_no_sampling() -> None:
    sampling = {*MessagesRequest.__struct_encode_fields__} - {*CountRequest.__struct_encode_fields__}
    assert sampling == {"max_tokens", "stop_sequences", "stream", "temperature", "top_p", "top_k"}
    chat = parsed_chat("messages", json.dumps({**ASKED, "temperature": 0.5, "top_k": 3, "top_p": 0.5}).encode()).chat
    assert (chat.temperature, chat.top_k, chat.top_p, chat.max_tokens) == (0.5, 3, 0.5, 300)


async def test_results_of_tools_keep_their_place_and_say_that_they_failed() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "no such file", "is_error": True}
    turn = {"role": "user", "content": [{"type": "text", "text": "a"}, result, {"type": "text", "text": "b"}]}
    chat = parsed_chat("messages", json.dumps({**ASKED, "messages": [turn]}).encode()).chat
    assert [(message.role, message.text) for message in chat.messages] == [
        ("user", "a"), ("tool", "Error: no such file"), ("user", "b")
    ]  # fmt: skip
