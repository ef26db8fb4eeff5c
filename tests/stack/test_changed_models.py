"""A model is changed under its name while requests run, with and without a scheduler that dies on the way.

Every answer is whole, and of one model: the former one, or the new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from stack.launch import manifests, running
from stack.test_apply import apply
from stack.traffic import PROMPTS, stream

from aegaeon_cli.demo.stack import Stack

PATIENCE_S = 60


@pytest.fixture(scope="module")
def stack(four_models: dict[str, Path]) -> Iterator[Stack]:
    with running(manifests({name: four_models[name] for name in ("llama", "qwen3")}, engines=2)) as up:
        yield up


def served(four_models: dict[str, Path], files: str, max_model_len: int = 0) -> str:
    """`qwen3` with the files of another model, or with a shorter context."""
    text = manifests({"llama": four_models["llama"], "qwen3": four_models[files]}, engines=2)
    return text.replace("name: qwen3", f"name: qwen3\n    maxModelLen: {max_model_len}") if max_model_len else text


async def asked(client: Any, stop: asyncio.Event) -> list[list[str]]:
    """Requests without a pause until the change is through, and one after it: by three clients, in the order of their
    beginning."""

    async def one(prompt: str) -> list[str]:
        answers = []
        while not stop.is_set():
            answers.append(await stream(client, "qwen3", prompt))
        return [*answers, await stream(client, "qwen3", prompt)]

    return list(await asyncio.gather(*(one(prompt) for prompt in PROMPTS)))


@pytest.mark.parametrize("scheduler", ["goes on", "dies"])
async def test_requests_get_complete_answers_of_the_former_or_the_new_model(
    stack: Stack, client: Any, four_models: dict[str, Path], tmp_path: Path, scheduler: str
) -> None:
    before, after = ("qwen3", "llama") if scheduler == "goes on" else ("llama", "qwen3")
    former = [await stream(client, "qwen3", prompt) for prompt in PROMPTS]
    stop = asyncio.Event()
    traffic = asyncio.create_task(asked(client, stop))
    await asyncio.sleep(0.5)  # so that streams are under way
    status, printed = await asyncio.to_thread(apply, stack, tmp_path, served(four_models, after))
    assert (status, "model qwen3 changed" in printed) == (0, True), printed
    if scheduler == "dies":
        stack.kill("scheduler")
    async with asyncio.timeout(PATIENCE_S):
        while await stream(client, "qwen3", PROMPTS[0]) == former[0]:
            pass
    stop.set()
    new = [await stream(client, "qwen3", prompt) for prompt in PROMPTS]
    assert all(one != other for one, other in zip(former, new, strict=True)), f"{before} and {after} say the same"
    for answers, old, fresh in zip(await traffic, former, new, strict=True):
        assert set(answers) <= {old, fresh}
        assert answers == sorted(answers, key=[old, fresh].index)
        assert answers[-1] == fresh


async def test_a_setting_of_a_served_model_and_a_scheduler_that_is_killed_at_once_cost_no_request(
    stack: Stack, client: Any, four_models: dict[str, Path], tmp_path: Path
) -> None:
    expected = await stream(client, "qwen3", PROMPTS[0])
    status, printed = await asyncio.to_thread(apply, stack, tmp_path, served(four_models, "qwen3", max_model_len=1024))
    assert status == 0, printed
    stack.kill("scheduler")
    answers = await asyncio.gather(*(stream(client, "qwen3", PROMPTS[0]) for _ in range(8)))
    assert set(answers) == {expected}
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await client.completions.create(model="qwen3", prompt=[5] * 1500, max_tokens=1)
            except openai.BadRequestError:
                break  # it fits the former context, and not the new one
    assert await stream(client, "qwen3", PROMPTS[0]) == expected


async def test_a_change_that_cannot_be_served_is_refused_and_the_former_model_keeps_serving(
    stack: Stack, client: Any, four_models: dict[str, Path], tmp_path: Path
) -> None:
    expected = await stream(client, "qwen3", PROMPTS[0])
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    folder = tmp_path / "manifests"
    folder.mkdir()
    status, printed = await asyncio.to_thread(apply, stack, folder, served(four_models | {"broken": broken}, "broken"))
    assert status == 0, printed
    for _ in range(3):
        assert await stream(client, "qwen3", PROMPTS[0]) == expected
    assert (await asyncio.to_thread(apply, stack, folder, served(four_models, "qwen3")))[0] == 0
    assert await stream(client, "qwen3", PROMPTS[0]) == expected
