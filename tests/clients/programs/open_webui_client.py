"""Open WebUI's calls, sent as it sends them: the package itself is larger than all other clients together.

Paths, headers and fields are those of open-webui 0.12.4 (Open WebUI License: BSD-3-Clause and a clause on branding), in
backend/open_webui: routers/openai.py, routers/tasks.py, utils/headers.py, utils/middleware.py, retrieval/utils.py.
"""

import asyncio
import json
import sys

import aiohttp

URL, MODEL = sys.argv[1:]
HEADERS = {
    "Content-Type": "application/json",
    "Authorization": "Bearer none",
    "X-OpenWebUI-Auth-Type": "jwt",
    "X-OpenWebUI-User-Name": "J%C3%B6rg Maier",
    "X-OpenWebUI-User-Id": "7f9c1d0e-5b0e-4f2a-9a54-0d5cf2f2a111",
    "X-OpenWebUI-User-Email": "joerg@example.com",
    "X-OpenWebUI-User-Role": "user",
    "X-OpenWebUI-Chat-Id": "1f0a9f0c-6a43-4a58-8d4f-3c3e0b1c2d3e",
}
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "a city"}},
        "required": ["city"],
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
HELLO = {"role": "user", "content": "Say hello."}
SYSTEM = {"role": "system", "content": "Be brief."}
CHOSEN = {"temperature": 0.0, "top_p": 0.9, "top_k": 40, "min_p": 0.0, "seed": 42, "max_tokens": 128, "stop": ["###"],
          "frequency_penalty": 0.0, "presence_penalty": 0.0, "logit_bias": {"5": -100}}  # fmt: skip
ORIGIN = {"Origin": "https://chat.example.com"}


async def posted(session: aiohttp.ClientSession, path: str, body: dict[str, object]) -> dict[str, object]:
    async with session.post(f"{URL}{path}", data=json.dumps(body), headers=HEADERS) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def events(session: aiohttp.ClientSession, path: str, body: dict[str, object]) -> list[dict[str, object]]:
    """The data of a stream, read by line as the middleware does."""
    async with session.post(f"{URL}{path}", data=json.dumps(body), headers=HEADERS) as answer:
        assert answer.status == 200, await answer.text()
        assert "text/event-stream" in answer.headers["Content-Type"]
        lines = [line.decode().strip() async for line in answer.content]
    data = [line.removeprefix("data:").strip() for line in lines if line.startswith("data:")]
    return [json.loads(text) for text in data if text != "[DONE]"]


async def streamed(session: aiohttp.ClientSession, **body: object) -> tuple[str, str, list[dict[str, object]]]:
    """Content, reasoning and calls of a chat that is streamed with usage."""
    whole = {"stream": True, "model": MODEL, "stream_options": {"include_usage": True}, **CHOSEN, **body}
    content, reasoning, calls = "", "", {}
    chunks = await events(session, "/chat/completions", whole)
    for delta in (chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]):
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        for call in delta.get("tool_calls") or []:
            known = calls.setdefault(call["index"], {"id": call.get("id"), "name": "", "arguments": ""})
            for name, piece in call["function"].items():
                known[name] += piece or ""
    assert chunks[-1]["usage"]["completion_tokens"] > 0, chunks[-1]
    return content, reasoning, list(calls.values())


async def connection(session: aiohttp.ClientSession) -> None:
    """Its check of a connection, and the list for the menu of models."""
    async with session.get(f"{URL}/models", headers=HEADERS) as answer:
        listed = await answer.json()
    assert {model["id"] for model in listed["data"]} == {MODEL, "embed"}, listed
    assert all(model["object"] == "model" and model["owned_by"] for model in listed["data"]), listed


async def chat_with_tools(session: aiohttp.ClientSession) -> None:
    """Native function calling: the call, and the answer to its result."""
    tools = [{"type": "function", "function": TOOL}]
    _, reasoning, [call] = await streamed(session, messages=[SYSTEM, QUESTION], tools=tools)
    assert reasoning == "The tool knows.", reasoning
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Paris"}), call
    function = {"name": call["name"], "arguments": call["arguments"]}
    called = {"role": "assistant", "content": "", "tool_calls": [
        {"id": call["id"], "type": "function", "function": function}]}  # fmt: skip
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    content, _, _ = await streamed(session, messages=[SYSTEM, QUESTION, called, result], tools=tools)
    assert content == "It is sunny in Paris.", content


async def tasks(session: aiohttp.ClientSession) -> None:
    """Titles (at most 1000 tokens), tags and questions that follow (no limit), emojis (4 tokens): none is streamed.

    It sends no temperature with them; a sampled answer would now and then be another one, so this does."""
    task = {"model": MODEL, "messages": [HELLO], "stream": False, "temperature": 0.0}
    for limit in ({"max_tokens": 1000}, {}, {"max_tokens": 4}):
        answer = await posted(session, "/chat/completions", task | limit)
        [choice] = answer["choices"]
        assert "Hello to you.".startswith(choice["message"]["content"]), answer
        assert choice["finish_reason"] == ("length" if limit.get("max_tokens") == 4 else "stop"), answer


async def responses(session: aiohttp.ClientSession) -> None:
    """A connection of type `responses`: the same chat and tools, translated by it."""
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION["content"]}]}]
    body = {"stream": True, "model": MODEL, "temperature": 0.0, "top_p": 0.9, "max_output_tokens": 128,
            "instructions": "Be brief.", "tools": [{"type": "function", **TOOL, "strict": False}]}  # fmt: skip
    *_, last = await events(session, "/responses", {**body, "input": items})
    [call] = [item for item in last["response"]["output"] if item["type"] == "function_call"]
    items += [
        {"type": "function_call", **{name: call[name] for name in ("call_id", "name", "arguments")}},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"},
    ]
    texts = [event["delta"] for event in await events(session, "/responses", {**body, "input": items})
             if event["type"] == "response.output_text.delta"]  # fmt: skip
    assert "".join(texts) == "It is sunny in Paris.", texts


async def documents(session: aiohttp.ClientSession) -> None:
    """Embeddings of pieces of documents, for retrieval."""
    answer = await posted(session, "/embeddings", {"input": ["a text", "another"], "model": "embed"})
    vectors = [row["embedding"] for row in answer["data"]]
    assert len(vectors) == 2, answer
    assert all(isinstance(value, float) for vector in vectors for value in vector), answer


async def direct_connection(session: aiohttp.ClientSession) -> None:
    """A direct connection: the browser asks whether the page may, then sends the chat itself."""
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    path = f"{URL}/chat/completions"
    async with session.options(path, headers={**ORIGIN, **asked}) as answer:
        allowed = answer.headers
        assert (answer.status, allowed["Access-Control-Allow-Origin"]) == (204, ORIGIN["Origin"]), answer
        assert allowed["Access-Control-Allow-Headers"] == asked["Access-Control-Request-Headers"], answer
        assert "POST" in allowed["Access-Control-Allow-Methods"], answer
    headers = {name: HEADERS[name] for name in ("Authorization", "Content-Type")}
    body = {"model": MODEL, "messages": [HELLO], **CHOSEN}  # sampled, the answer would now and then be another one
    async with session.post(path, json=body, headers={**headers, **ORIGIN}) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == ORIGIN["Origin"], answer
        assert (await answer.json())["choices"][0]["message"]["content"] == "Hello to you."
    async with session.options(path, headers={"Origin": "https://other.example.com", **asked}) as answer:
        assert "Access-Control-Allow-Origin" not in answer.headers, answer


async def main() -> None:
    async with aiohttp.ClientSession() as session:
        for calls in (connection, chat_with_tools, tasks, responses, documents, direct_connection):
            await calls(session)


asyncio.run(main())
