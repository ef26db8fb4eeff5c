"""The official client: chats, streams, tools, both turns of a call, parsing helpers, logprobs of prompts."""

import json
import sys

import openai

URL, MODEL = sys.argv[1:]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
first = client.chat.completions.create(model=MODEL, messages=[QUESTION], tools=[TOOL], temperature=0)
message = first.choices[0].message
assert first.choices[0].finish_reason == "tool_calls", first
assert message.reasoning_content == "The tool knows.", message
[call] = message.tool_calls
assert json.loads(call.function.arguments) == {"city": "Paris"}
result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
second = client.chat.completions.create(
    model=MODEL, messages=[QUESTION, message.model_dump(), result], tools=[TOOL], temperature=0
)
assert second.choices[0].message.content == "It is sunny in Paris.", second

with client.chat.completions.stream(model=MODEL, messages=[QUESTION], tools=[TOOL], temperature=0) as stream:
    for _ in stream:
        pass
    [streamed] = stream.get_final_completion().choices[0].message.tool_calls
assert (streamed.function.name, json.loads(streamed.function.arguments)) == ("get_weather", {"city": "Paris"})

scored = client.completions.create(model=MODEL, prompt="Say hello.", max_tokens=0, echo=True, logprobs=1)
assert scored.choices[0].text == "Say hello."
assert scored.choices[0].logprobs.token_logprobs[0] is None
assert all(logprob <= 0 for logprob in scored.choices[0].logprobs.token_logprobs[1:])
assert [model.id for model in client.models.list()] == [MODEL]
