"""The official client: chats, streams, tools, both turns of a call, parsing helpers, logprobs of prompts."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

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

NAMED = {"type": "function", "function": {"name": "get_weather"}}
ONE_OF = {**TOOL["function"], "parameters": {**TOOL["function"]["parameters"], "additionalProperties": False}}
ONE_OF["parameters"]["properties"] = {"city": {"enum": ["Rome"]}}
for choice in (NAMED, "required"):
    forced = client.chat.completions.create(
        model=MODEL, messages=[QUESTION], tools=[{**TOOL, "function": ONE_OF}], tool_choice=choice,
        parallel_tool_calls=False, temperature=0, max_tokens=200,
    )  # fmt: skip
    [call] = forced.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}, forced


class Weather(BaseModel):
    city: Literal["Paris"]


parsed = client.chat.completions.parse(model=MODEL, messages=[QUESTION], response_format=Weather, temperature=0)
assert parsed.choices[0].message.parsed == Weather(city="Paris"), parsed

scored = client.completions.create(model=MODEL, prompt="Say hello.", max_tokens=0, echo=True, logprobs=1)
assert scored.choices[0].text == "Say hello."
assert scored.choices[0].logprobs.token_logprobs[0] is None
assert all(logprob <= 0 for logprob in scored.choices[0].logprobs.token_logprobs[1:])
assert {model.id for model in client.models.list()} == {MODEL, "embed"}
