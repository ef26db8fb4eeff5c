"""Four clients whose requests make steps fail, beside a tenant's streams of the same model: no stream notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from conftest import FATAL_TOKEN, NAN_TOKEN
from stack.pods import START_S, Pods, running
from stack.traffic import PROMPTS, stream

Attack = Callable[[openai.AsyncOpenAI], Awaitable[Any]]
PROMPT = [5, 17, 23, 42]
MODEL = "m"


def ask(**fields: Any) -> Attack:
    asked = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0} | fields
    return lambda client: client.completions.create(**asked)


IN_BOUNDS = {
    "a token that is not a number in the prompt": ask(prompt=[*PROMPT, NAN_TOKEN, 5]),
    "the same with a draw": ask(prompt=[NAN_TOKEN], temperature=1, n=3),
    "as an output": ask(logit_bias={str(NAN_TOKEN): 100}, extra_body={"min_tokens": 5}),
    "with probabilities": ask(prompt=[NAN_TOKEN], logprobs=2),
}
OUT_OF_BOUNDS = {
    "repetition_penalty": ask(temperature=1, extra_body={"repetition_penalty": 1e-40}),
    "top_p": ask(temperature=1, top_p=1e-50),
    "top_k": ask(extra_body={"top_k": 10**15}),
    "logit_bias": ask(logit_bias={str(token): 1 for token in range(1025)}),
}


@asynccontextmanager
async def attacked(client: openai.AsyncOpenAI, attacks: dict[str, Attack]) -> AsyncIterator[dict[str, list[str]]]:
    """Each client attacks again as soon as it has its answer; yields each answer."""
    received: dict[str, list[str]] = {name: [] for name in attacks}

    async def attack(name: str) -> None:
        while True:
            try:
                await attacks[name](client)
                received[name].append("")
            except openai.APIStatusError as error:
                received[name].append(f"{error.status_code} {error.message}")

    tasks = [asyncio.create_task(attack(name)) for name in attacks]
    yield received
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def metric(pods: Pods, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"http://{pods.pages}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f'{name}{{model="{MODEL}"}}'))


async def test_no_stream_of_a_tenant_fails_or_differs_beside_four_poison_clients(nan_model: Path) -> None:
    async with running({MODEL: nan_model}, engines=1) as (pods, client):
        expected = [await stream(client, MODEL, prompt) for prompt in PROMPTS]
        for attacks in (IN_BOUNDS, OUT_OF_BOUNDS):
            async with attacked(client, attacks) as received:
                streams = asyncio.gather(*(stream(client, MODEL, prompt) for prompt in PROMPTS))
                assert await streams == expected
            assert all(received.values())
            for name, answers in received.items():
                status = "500" if attacks is IN_BOUNDS else "400"
                named = "not finite" if attacks is IN_BOUNDS else name
                assert all(answer.startswith(status) and named in answer for answer in answers), (name, answers)
        assert await metric(pods, "aegaeon_scheduler_sequences_poisoned_total") >= len(IN_BOUNDS)
        assert f"of {MODEL} was ended: the logits that {MODEL} computed are not finite" in pods.log("scheduler")
        assert not [name for name, process in pods.processes.items() if process.returncode is not None]


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
