"""OpenAI's Agents SDK on chat completions: an agent with a tool, run to its answer."""

import asyncio
import sys

import openai
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

URL, MODEL = sys.argv[1:]
set_tracing_disabled(True)


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"


async def main() -> None:
    client = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
    agent = Agent(name="a", model=model, tools=[get_weather], model_settings=ModelSettings(temperature=0))
    answer = await Runner.run(agent, "What is the weather in Paris?")
    assert answer.final_output == "It is sunny in Paris.", answer


asyncio.run(main())
