"""First steps of a model are done while its engine has nothing to do, and what is served is the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import openai
import pytest
from stack.pods import START_S, Pods, running
from stack.traffic import PROMPTS

MODEL = "llama"


async def answer(client: openai.AsyncOpenAI, tokens: int) -> str:
    made = await client.completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=tokens, temperature=0)
    return made.choices[0].text


async def counted(pods: Pods, name: str) -> float:
    """Seconds, of the only engine."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{pods.pages}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"aegaeon_scheduler_{name}{{"))


async def ahead(pods: Pods) -> float:
    """Seconds of first steps that no request waited for, once there were any."""
    async with asyncio.timeout(START_S):
        while True:
            if seconds := await counted(pods, "first_steps_ahead_seconds_total"):
                return seconds
            await asyncio.sleep(0.1)  # other processes are watched


async def test_an_idle_engine_runs_what_a_prompt_alone_has_not_run(
    four_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running({MODEL: four_models[MODEL]}, engines=1) as (_, client):
        expected = await answer(client, 6)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    async with running({MODEL: four_models[MODEL]}, engines=1, engine="stack.paged_engine") as (pods, client):
        await answer(client, 1)
        seconds = await ahead(pods)
        first = await counted(pods, "first_steps_seconds_total")
        assert 0.0 < seconds < first  # the prompt's own first step was waited for
        assert await answer(client, 6) == expected
        assert await counted(pods, "first_steps_ahead_seconds_total") >= seconds
