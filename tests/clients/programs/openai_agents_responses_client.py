"""OpenAI's Agents SDK with its default, responses: an agent with a tool, whole, streamed, and with what is kept."""

import asyncio
import sys

import openai
from agents import Agent, ModelSettings, Runner, function_tool, set_default_openai_client, set_tracing_disabled

URL, MODEL = sys.argv[1:]
QUESTION = "What is the weather in Paris?"
set_tracing_disabled(True)
set_default_openai_client(openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0))


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"


async def main() -> None:
    agent = Agent(name="a", model=MODEL, tools=[get_weather], model_settings=ModelSettings(temperature=0))
    answer = await Runner.run(agent, QUESTION)
    assert answer.final_output == "It is sunny in Paris.", answer
    kept = await Runner.run(agent, QUESTION, auto_previous_response_id=True)
    assert kept.final_output == "It is sunny in Paris.", kept
    streamed = Runner.run_streamed(agent, QUESTION)
    kinds = {event.type async for event in streamed.stream_events()}
    assert "run_item_stream_event" in kinds, kinds
    assert streamed.final_output == "It is sunny in Paris.", streamed


asyncio.run(main())
