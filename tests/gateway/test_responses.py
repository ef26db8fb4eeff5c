"""OpenAI's Responses API over HTTP: the chat that a request becomes, what comes back, and what is kept."""

from __future__ import annotations

import json
from typing import Any

import openai
from gateway.conftest import HI, STRICT, TEXT, StartGateway
from gateway.test_tools import ADD, client_of, hermes_directory, prompt_of, say, spoken

from aegaeon_gateway.request.bodies import parsed_chat
from aegaeon_gateway.request.responses_schema import RESPONSES, ResponsesRequest

__all__ = ["hermes_directory", "spoken"]  # fixtures

TOOL = {"type": "function", **ADD["function"]}
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}],
     "encrypted_content": None, "status": "completed"},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "I add.", "annotations": [], "logprobs": [], "parsed": None}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": '{"a": 1, "b": 2}',
     "status": "completed", "parsed_arguments": None},
    {"type": "function_call_output", "call_id": "call_1", "output": "3"},
    {"type": "message", "role": "user", "content": "So?"},
]  # fmt: skip
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 2?"},
    {"role": "assistant", "content": "I add.", "reasoning_content": "Hm.",
     "tool_calls": [{"id": "call_1", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    {"role": "user", "content": "So?"},
]  # fmt: skip


async def ask(pool: Any, **body: Any) -> dict[str, Any]:
    status, answer, _ = await pool.post("/v1/responses", {"model": "tiny", "input": "hi", **body})
    assert status == 200, answer
    return dict(answer)


async def found(pool: Any, id_: str, method: str = "GET", key: str | None = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with pool.http.request(method, f"{pool.url}/v1/responses/{id_}", headers=headers) as response:
        return response.status, await response.json()


async def test_a_response_is_whole_and_repeats_its_request(pool: Any) -> None:
    answer = await ask(pool, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, max_output_tokens=200)
    [message] = answer["output"]
    assert message["content"] == [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}]
    assert (message["type"], message["role"], message["status"]) == ("message", "assistant", "completed")
    assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
    assert (answer["instructions"], answer["metadata"], answer["temperature"]) == ("Be brief.", {"a": "b"}, 0.5)
    submit = pool.peer.submits[0]
    assert answer["usage"]["input_tokens"] == len(submit.prompt)
    assert answer["usage"]["output_tokens"] == len(pool.peer.say(submit, 0))
    assert submit.limits.max_tokens == 200
    cut = await ask(pool, max_output_tokens=1)
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["output"][0]["status"] == "incomplete"


async def test_the_prompt_is_that_of_the_same_chat(spoken: Any) -> None:
    await ask(spoken, model="hermes", input=ITEMS, instructions="Be brief.", tools=[TOOL])
    status, _, _ = await spoken.chat(model="hermes", messages=CHAT, tools=[ADD])
    assert status == 200
    ours, chat = (list(submit.prompt) for submit in spoken.peer.submits)
    assert ours == chat


async def test_thoughts_texts_and_calls_are_items_whole_and_streamed(spoken: Any) -> None:
    answer = await ask(spoken, model="hermes", tools=[TOOL])
    thought, text, *calls = answer["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Two numbers."}]
    assert text["content"][0]["text"] == "I add."
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [("add", {"a": 1, "b": 2})] * 2
    assert len({call["call_id"] for call in calls}) == 2
    thinking = answer["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 0 < thinking < answer["usage"]["output_tokens"] / 2
    spoken.peer.pace_s = 0.01
    async with client_of(spoken) as client:
        stream = await client.responses.create(model="hermes", input="hi", tools=[TOOL], stream=True)  # type: ignore[call-overload]  # of literals alone
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events][:3] == [
        "response.created", "response.in_progress", "response.output_item.added"
    ]  # fmt: skip
    last = events[-1]
    assert last.type == "response.completed"
    assert [content_of(item.model_dump()) for item in last.response.output] == [*map(content_of, answer["output"])]
    assert last.response.usage.output_tokens == answer["usage"]["output_tokens"]
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == last.response.output
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == "I add."
    arguments = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(arguments) == "".join(call["arguments"] for call in calls)
    assert len(arguments) > 2 * len(calls), "whole calls"


def content_of(item: dict[str, Any]) -> Any:
    """Without what differs from answer to answer."""
    content = [(part["type"], part["text"]) for part in item.get("content") or []]
    return item["type"], content, item.get("name"), item.get("arguments")


async def test_thoughts_are_hidden_on_request(spoken: Any) -> None:
    answer = await ask(spoken, model="hermes", tools=[TOOL], include_reasoning=False)
    assert [item["type"] for item in answer["output"]] == ["message", "function_call", "function_call"]


async def test_a_stream_of_text_and_its_logprobs_are_what_the_client_parses(pool: Any) -> None:
    async with (
        client_of(pool) as client,
        client.responses.stream(
            model="tiny",
            input="hi",
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            extra_body={"stream_options": {"include_usage": True}},  # as load generators ask
        ) as stream,
    ):
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == TEXT
    assert final.usage
    assert final.usage.output_tokens > 0
    [message] = final.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs
    assert bytes(byte for entry in part.logprobs for byte in entry.bytes).decode() == TEXT
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


async def test_a_conversation_goes_on_with_what_was_kept(spoken: Any, tokenizer: Any) -> None:
    first = await ask(spoken, model="hermes", input="1 + 2?", tools=[TOOL], instructions="Be brief.")
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "3"}
        for item in first["output"]
        if item["type"] == "function_call"
    ]
    say(spoken, tokenizer, "Three.")
    second = await ask(spoken, model="hermes", input=outputs, tools=[TOOL], previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    kept = prompt_of(spoken, tokenizer)
    whole = [{"role": "user", "content": "1 + 2?"}, *first["output"], *outputs]
    await ask(spoken, model="hermes", input=whole, tools=[TOOL], store=False)
    assert prompt_of(spoken, tokenizer) == kept
    await ask(spoken, model="hermes", input="Sure?", tools=[TOOL], previous_response_id=second["id"])
    again = prompt_of(spoken, tokenizer)
    assert again.startswith(kept + "Three.")
    assert "Be brief." not in again


async def test_what_is_kept_is_read_and_deleted(pool: Any) -> None:
    answer = await ask(pool)
    assert await found(pool, answer["id"]) == (200, answer)
    assert await found(pool, answer["id"], "DELETE") == (
        200, {"id": answer["id"], "object": "response", "deleted": True}
    )  # fmt: skip
    for method in ("GET", "DELETE"):
        status, body = await found(pool, answer["id"], method)
        assert (status, body["error"]["code"]) == (404, "response_not_found")
    body = {"model": "tiny", "input": "hi", "previous_response_id": answer["id"]}
    status, refused, _ = await pool.post("/v1/responses", body)
    assert (status, refused["error"]["code"]) == (400, "previous_response_not_found")
    unkept = await ask(pool, store=False)
    assert (await found(pool, unkept["id"]))[0] == 404


async def test_the_input_of_a_kept_response_is_listed_in_pages(spoken: Any, tokenizer: Any) -> None:
    first = await ask(spoken, model="hermes", input=ITEMS, tools=[TOOL])
    say(spoken, tokenizer, "Three.")
    last = await ask(spoken, model="hermes", input="Sure?", tools=[TOOL], previous_response_id=first["id"])
    async with client_of(spoken) as client:
        listed = [item async for item in client.responses.input_items.list(last["id"], limit=3, order="asc")]
        page = await client.responses.input_items.list(last["id"], limit=1)
        assert (page.data, page.has_more) == (listed[-1:], True)
        assert page.data[0].model_dump(exclude_none=True)["content"] == [{"type": "input_text", "text": "Sure?"}]
        own = await client.responses.input_items.list(first["id"], order="asc")
    kinds = [item.type for item in listed]
    assert kinds == [item.get("type", "message") for item in (*ITEMS, *first["output"], {})]
    assert [item.type for item in own.data] == kinds[: len(ITEMS)]
    assert [item.id for item in listed if item.type == "reasoning"] == ["rs_1", first["output"][0]["id"]]
    assert len({item.id for item in listed}) == len(listed)
    for path, status in ((f"{last['id']}/input_items?after=x", 400), ("resp_none/input_items", 404)):
        assert (await found(spoken, path))[0] == status


async def test_a_response_says_whether_it_is_kept(start_gateway: StartGateway) -> None:
    async with start_gateway(responses_bytes=99) as pool:
        assert (await ask(pool))["store"] is False
        async with client_of(pool) as client:
            events = [event async for event in await client.responses.create(model="tiny", input="hi", stream=True)]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.model_dump()["store"] is False


async def test_a_failed_stream_ends_with_a_failed_response(pool: Any) -> None:
    pool.peer.lose_after = [3, *[0] * 9]
    async with client_of(pool) as client:
        events = [event async for event in await client.responses.create(model="tiny", input="hi", stream=True)]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert last.response.error is not None
    assert (last.response.error.code, "lost" in last.response.error.message) == ("server_error", True)


async def test_forms_and_choices_are_constraints(spoken: Any, tokenizer: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    answer = await ask(spoken, model="hermes", text={"format": form})
    assert json.loads(spoken.peer.submits[-1].sampling.constraint.text) == schema
    assert answer["text"]["format"] == form
    say(spoken, tokenizer, '[{"name": "add", "arguments": {"a": 1, "b": 2}}]')
    for choice in ("required", {"type": "function", "name": "add"}):
        answer = await ask(spoken, model="hermes", tools=[TOOL], tool_choice=choice)
        assert [item["type"] for item in answer["output"]] == ["function_call"]
        assert answer["tool_choice"] == choice


async def test_a_choice_may_allow_some_of_the_tools(spoken: Any, tokenizer: Any) -> None:
    other = {**TOOL, "name": "sub"}
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "sub"}]}
        answer = await ask(spoken, model="hermes", tools=[TOOL, other], tool_choice=choice)
        assert answer["tool_choice"] == choice
        prompt = prompt_of(spoken, tokenizer)
        assert ('"name": "add"' in prompt, '"name": "sub"' in prompt) == (mode == "required", True)
        constraint = spoken.peer.submits[-1].sampling.constraint.text
        assert (mode == "required") == bool(constraint)
    [call] = json.loads(constraint)["items"]["anyOf"]
    assert call["properties"]["name"] == {"const": "sub"}
    chat = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "sub"}}]},
    }
    named = [ADD, {"type": "function", "function": {**ADD["function"], "name": "sub"}}]
    status, body, _ = await spoken.chat(model="hermes", tools=named, tool_choice=chat)
    assert status == 200, body
    assert '"name": "add"' not in prompt_of(spoken, tokenizer)
    status, body, _ = await spoken.chat(model="hermes", tools=named[:1], tool_choice=chat)
    assert (status, body["error"]["param"]) == (400, "tool_choice")
    assert "'sub'" in body["error"]["message"]


@STRICT
async def test_what_asks_for_nothing_is_accepted_and_what_is_not_given_is_refused_by_name(pool: Any) -> None:
    every = [*RESPONSES.refused, *RESPONSES.no_effect, *ResponsesRequest.__struct_encode_fields__]
    await ask(pool, **{name: None for name in every if name not in {"model", "input"}})
    await ask(
        pool, include=["reasoning.encrypted_content"], reasoning={"summary": "auto"}, text={"verbosity": "medium"}
    )
    for name, refused in RESPONSES.refused.items():
        for neutral in refused.neutral:
            await ask(pool, **{name: neutral})
        status, body, _ = await pool.post("/v1/responses", {"model": "tiny", "input": "hi", name: {"some": "thing"}})
        assert (status, body["error"]["param"]) == (400, name)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_output_tokens": 5000}, "max_output_tokens"),
    ({"input": "word " * 3000}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    ({"input": [{"role": "user"}]}, "input[0]"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": 5}}}}, "text.format.schema"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"n": 2}, "n"),
]


@STRICT
async def test_a_refusal_names_the_parameter(pool: Any) -> None:
    for change, param in REFUSED:
        status, answer, _ = await pool.post("/v1/responses", {"model": "tiny", "input": "hi", **change})
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error"), change
        assert answer["error"]["param"].startswith(param), answer


def test_thoughts_begin_a_message_and_calls_end_it() -> None:
    items = [ITEMS[1], ITEMS[3], {**ITEMS[3], "call_id": "call_2"}, ITEMS[4], ITEMS[2], ITEMS[2]]
    body = {"model": "m", "input": [HI, *items]}
    messages = parsed_chat("responses", json.dumps(body).encode()).chat.messages
    assert [(one.role, len(one.tool_calls or ()), one.reasoning_content) for one in messages] == [
        ("user", 0, None), ("assistant", 2, "Hm."), ("tool", 0, None), ("assistant", 0, None), ("assistant", 0, None)
    ]  # fmt: skip


def test_a_history_comes_first() -> None:
    history = json.dumps(ITEMS).encode()
    body = json.dumps({"model": "m", "input": "And?", "instructions": "Be brief."}).encode()
    made = parsed_chat("responses", history + body, len(history))
    assert [message.text for message in made.chat.messages] == ["Be brief.", "1 + 2?", "I add.", "3", "So?", "And?"]
    assert len(json.loads(made.conversation)) == len(ITEMS) + 1
    assert openai.VERSION
