"""A request that kills its engine, beside streams of the same model: each stream has its whole answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from conftest import FATAL_TOKEN
from stack.pods import START_S, Pods, running
from stack.traffic import PROMPTS, stream

PROMPT = [5, 17, 23, 42]
MODEL = "m"


async def metric(pods: Pods, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"http://{pods.pages}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f'{name}{{model="{MODEL}"}}'))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_request_that_kills_engines_is_failed_and_costs_no_other_an_answer(nan_model: Path) -> None:
    mortal: dict[str, Any] = {"engine": "stack.mortal_engine", "hold_s": START_S}
    async with running({MODEL: nan_model}, engines=2, **mortal) as (pods, client):
        expected = [await stream(client, MODEL, prompt) for prompt in PROMPTS]
        deaths = 0

        async def revive(name: str) -> None:
            nonlocal deaths
            while True:
                assert await pods.processes[name].wait() == 1
                deaths += 1
                await pods.start_engine(name)

        keepers = [asyncio.create_task(revive(f"engine-{i}")) for i in range(2)]
        streams = [asyncio.create_task(stream(client, MODEL, prompt)) for prompt in PROMPTS]
        with pytest.raises(openai.InternalServerError, match="given up after 3 failures, the last one alone"):
            await client.completions.create(
                model=MODEL, prompt=PROMPT, max_tokens=40, temperature=0, logit_bias={str(FATAL_TOKEN): 100}
            )
        assert await asyncio.gather(*streams) == expected
        assert deaths == 3
        assert await metric(pods, "aegaeon_scheduler_sequences_poisoned_total") == 1
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
