"""The official client on responses: both turns of a call, kept conversations, streams, parsing."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]
TOOL = {
    "type": "function",
    "name": "get_weather",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
QUESTION = "What is the weather in Paris?"

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
ask = {"model": MODEL, "temperature": 0}
first = client.responses.create(input=QUESTION, tools=[TOOL], **ask)
thought, call = first.output
assert thought.content[0].text == "The tool knows.", first
assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"}), first
assert first.usage.output_tokens_details.reasoning_tokens > 0, first.usage
result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
second = client.responses.create(input=[result], tools=[TOOL], previous_response_id=first.id, **ask)
assert second.output_text == "It is sunny in Paris.", second
turns = [{"role": "user", "content": QUESTION}, *first.output, result]
stateless = client.responses.create(input=turns, tools=[TOOL], store=False, **ask)
assert stateless.output_text == second.output_text, stateless
assert client.responses.retrieve(second.id).output_text == second.output_text
client.responses.delete(second.id)
refused = None
try:
    client.responses.retrieve(second.id)
except openai.NotFoundError as error:
    refused = error.code
assert refused == "response_not_found", refused

with client.responses.stream(input=QUESTION, tools=[TOOL], **ask) as stream:
    kinds = {event.type for event in stream}
    streamed = stream.get_final_response()
assert {"response.reasoning_text.delta", "response.function_call_arguments.done", "response.completed"} <= kinds, kinds
assert json.loads(streamed.output[1].arguments) == {"city": "Paris"}, streamed
texts = [event.delta for event in client.responses.create(input="Say hello.", stream=True, **ask)
         if event.type == "response.output_text.delta"]  # fmt: skip
assert "".join(texts) == "Hello to you.", texts


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]


parsed = client.responses.parse(input=QUESTION, text_format=Weather, **ask)
assert parsed.output_parsed == Weather(city="Paris"), parsed
with client.responses.stream(input=QUESTION, text_format=Weather, **ask) as stream:
    assert stream.get_final_response().output_parsed == Weather(city="Paris")
again = client.responses.create(input=[*parsed.output, {"role": "user", "content": "Say hello."}], **ask)
assert again.status in {"completed", "incomplete"}, again
