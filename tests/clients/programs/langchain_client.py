"""LangChain's ChatOpenAI: bound tools, the message of the call back, streaming."""

import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"


chat = ChatOpenAI(model=MODEL, base_url=URL, api_key="none", temperature=0, max_retries=0)
bound = chat.bind_tools([get_weather])
question = HumanMessage("What is the weather in Paris?")
message = bound.invoke([question])
[call] = message.tool_calls
assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"}), message
result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
assert bound.invoke([question, message, result]).content == "It is sunny in Paris."


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]


for method in ("function_calling", "json_mode", "json_schema"):
    typed = chat.with_structured_output(Weather, method=method)
    assert typed.invoke([question]) == Weather(city="Paris"), method
streamed = None
for chunk in bound.stream([question]):
    streamed = chunk if streamed is None else streamed + chunk
assert [(call["name"], call["args"]) for call in streamed.tool_calls] == [("get_weather", {"city": "Paris"})]
assert chat.invoke("Say hello.").content == "Hello to you."
