"""The official client: chats, completions, streams, tools, both turns of a call, parsing helpers, logprobs."""

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

with client.chat.completions.stream(
    model=MODEL, messages=[QUESTION], response_format=Weather, temperature=0, stream_options={"include_usage": True}
) as stream:
    kinds = {event.type for event in stream}
    whole = stream.get_final_completion()
assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
assert whole.choices[0].message.parsed == Weather(city="Paris"), whole
assert whole.usage.completion_tokens > 0, whole


class GetWeather(BaseModel):
    """The weather of a city."""

    city: str


typed = openai.pydantic_function_tool(GetWeather, name="get_weather")
[call] = (
    client.chat.completions.parse(model=MODEL, messages=[QUESTION], tools=[typed], temperature=0)
    .choices[0]
    .message.tool_calls
)
assert call.function.parsed_arguments == GetWeather(city="Paris"), call

HELLO = {"role": "user", "content": "Say hello."}
chunks = client.chat.completions.create(
    model=MODEL, messages=[HELLO], stream=True, temperature=0, n=2, logprobs=True, top_logprobs=2
)
texts = ["", ""]
for choice in (choice for chunk in chunks for choice in chunk.choices):
    texts[choice.index] += choice.delta.content or ""
    assert choice.logprobs is None or all(len(token.top_logprobs) == 2 for token in choice.logprobs.content), choice
assert texts == ["Hello to you."] * 2, texts

scored = client.completions.create(model=MODEL, prompt="Say hello.", max_tokens=0, echo=True, logprobs=1)
assert scored.choices[0].text == "Say hello."
assert scored.choices[0].logprobs.token_logprobs[0] is None
assert all(logprob <= 0 for logprob in scored.choices[0].logprobs.token_logprobs[1:])
learnt = "<|begin|><|user|>Say hello.<|end|><|assistant|>"
pieces = client.completions.create(model=MODEL, prompt=learnt, stream=True, temperature=0, stop=" you")
assert "".join(piece.choices[0].text for piece in pieces) == "Hello to"
assert {model.id for model in client.models.list()} == {MODEL, "embed"}
assert client.models.retrieve(MODEL).id == MODEL
