"""Anthropic's client: messages, streams, both turns of a call, counting, parsing."""

import sys
from typing import Literal

import anthropic
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
HELLO = {"role": "user", "content": "Say hello."}

client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key="none", max_retries=0)
ask = {"model": MODEL, "max_tokens": 500, "extra_body": {"temperature": 0}}
first = client.messages.create(messages=[QUESTION], tools=[TOOL], **ask)
thought, call = first.content
assert first.stop_reason == "tool_use", first
assert thought.thinking == "The tool knows.", first
assert (call.name, call.input) == ("get_weather", {"city": "Paris"}), first
result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
turns = [QUESTION, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
second = client.messages.create(messages=turns, tools=[TOOL], system="Be brief.", **ask)
assert second.content[0].text == "It is sunny in Paris.", second
counted = client.messages.count_tokens(model=MODEL, messages=turns, tools=[TOOL])
assert counted.input_tokens == second.usage.input_tokens + second.usage.cache_read_input_tokens, (counted, second)

with client.messages.stream(messages=[QUESTION], tools=[TOOL], **ask) as stream:
    kinds = {event.type for event in stream}
    streamed = stream.get_final_message()
assert {"thinking", "input_json", "message_stop"} <= kinds, kinds
assert [block.type for block in streamed.content] == ["thinking", "tool_use"], streamed
assert streamed.content[1].input == {"city": "Paris"}, streamed
assert streamed.usage.output_tokens == first.usage.output_tokens
with client.messages.stream(messages=[HELLO], **ask) as stream:
    assert "".join(stream.text_stream) == "Hello to you."
cut = client.messages.create(messages=[HELLO], stop_sequences=[" you"], **ask)
assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("Hello to", "stop_sequence", " you"), cut
SCHEMA = {**TOOL["input_schema"], "properties": {"city": {"enum": ["Rome"]}}, "additionalProperties": False}
for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
    forced = client.messages.create(
        messages=[QUESTION], tools=[{**TOOL, "input_schema": SCHEMA}], tool_choice=choice, **ask
    )
    assert forced.content[0].input == {"city": "Rome"}, forced


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]


parsed = client.messages.parse(messages=[QUESTION], output_format=Weather, **ask)
assert parsed.parsed_output == Weather(city="Paris"), parsed
refused = None
try:
    client.messages.create(model="huge", max_tokens=1, messages=[HELLO])
except anthropic.NotFoundError as error:
    refused = error.body["error"]["type"]
assert refused == "not_found_error", refused
