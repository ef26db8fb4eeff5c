"""Instructor: a typed answer by tools, by JSON and by a JSON schema."""

import sys
from typing import Literal

import instructor
import openai
from pydantic import BaseModel

URL, MODEL = sys.argv[1:]


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]
    sunny: bool


for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key="none", max_retries=0), mode=mode)
    answer = client.chat.completions.create(
        model=MODEL,
        response_model=Weather,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        temperature=0,
        max_retries=0,
    )
    assert answer.city == "Paris", (mode, answer)
