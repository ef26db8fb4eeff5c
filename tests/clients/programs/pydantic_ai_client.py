"""Pydantic AI: an agent with a tool, run to its answer, whole and streamed; an output of a type."""

import asyncio
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, MODEL = sys.argv[1:]
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
agent = Agent(model, model_settings={"temperature": 0.0})
cities = []


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]


@agent.tool_plain
def get_weather(city: str) -> str:
    """The weather of a city."""
    cities.append(city)
    return "sunny"


async def main() -> None:
    answer = await agent.run("What is the weather in Paris?")
    assert answer.output == "It is sunny in Paris.", answer
    async with agent.run_stream("What is the weather in Paris?") as streamed:
        assert await streamed.get_output() == "It is sunny in Paris."
    assert cities == ["Paris", "Paris"]
    typed = await Agent(model, output_type=Weather, model_settings={"temperature": 0.0}).run("Where is it sunny?")
    assert typed.output == Weather(city="Paris"), typed


asyncio.run(main())
