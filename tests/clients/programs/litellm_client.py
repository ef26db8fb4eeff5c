"""LiteLLM: a call of a tool, its own message objects back in the second turn, streaming."""

import json
import sys

import litellm

URL, MODEL = sys.argv[1:]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASK = {"model": f"hosted_vllm/{MODEL}", "api_base": URL, "api_key": "none", "temperature": 0}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]

first = litellm.completion(messages=messages, tools=[TOOL], **ASK)
message = first.choices[0].message
assert message.reasoning_content == "The tool knows.", message
[call] = message.tool_calls
assert json.loads(call.function.arguments) == {"city": "Paris"}
messages += [message, {"role": "tool", "tool_call_id": call.id, "name": "get_weather", "content": "sunny"}]
second = litellm.completion(messages=messages, tools=[TOOL], **ASK)
assert second.choices[0].message.content == "It is sunny in Paris.", second

hello = [{"role": "user", "content": "Say hello."}]
answer = litellm.completion(messages=hello, **ASK).choices[0].message
again = litellm.completion(messages=[*hello, answer.model_dump(), *hello], **ASK)
assert again.choices[0].message.content == "Hello to you.", again
chunks = list(litellm.completion(messages=hello, stream=True, stream_options={"include_usage": True}, **ASK))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello to you."
vectors = litellm.embedding(model="hosted_vllm/embed", input=["a text"], api_base=URL, api_key="none").data
assert all(isinstance(value, float) for value in vectors[0]["embedding"]), vectors
