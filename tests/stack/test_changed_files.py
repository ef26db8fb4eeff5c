"""Weights that change on disk while they are served without the cache: the true reason is everywhere, repaired ones
are served again by themselves.

One engine has room for one of two models and a host cache for none, so each turn of a model reads its files.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from stack.launch import CONTEXT, manifests, running
from stack.test_apply import apply
from stack.traffic import PROMPTS, stream, until_empty

from aegaeon_cli.demo.stack import Stack

MODEL, INNOCENT = "hurt", "innocent"
WEIGHTS = "model.safetensors"
PATIENCE_S = 90.0  # against what hangs
ENGINE = {"device": "768Ki", "host_cache": "4Ki"}


def zero_in_place(file: Path) -> None:
    """As a failing disk would: size, inode and time of modification stay."""
    before = file.stat()
    with file.open("r+b") as open_file:
        open_file.seek(before.st_size // 2)
        open_file.write(bytes(before.st_size - before.st_size // 2))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def replace(file: Path) -> None:
    """Another version of the weights, moved to its name as a whole."""
    other = file.with_suffix(".new")
    raw = bytearray(file.read_bytes())
    raw[-8:] = bytes(value ^ 1 for value in raw[-8:])
    other.write_bytes(raw)
    other.rename(file)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "zeroed": (zero_in_place, "was written to"),
    "truncated": (truncate, "bytes, had"),
    "removed": (Path.unlink, "missing"),
    "replaced": (replace, "is another file"),
}


@pytest.fixture(scope="module")
def models(make_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    mine = tmp_path_factory.mktemp("tenant") / "mine"
    shutil.copytree(make_model("llama", max_position_embeddings=CONTEXT), mine)
    return {MODEL: mine, INNOCENT: make_model("qwen3", max_position_embeddings=CONTEXT)}


@pytest.fixture(scope="module")
def stack(models: dict[str, Path]) -> Iterator[Stack]:
    with running(manifests(models, engines=1, **ENGINE)) as up:
        yield up


@pytest.fixture
async def api(stack: Stack) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(stack.state.url) as session:
        yield session


async def state_of(api: aiohttp.ClientSession, model: str = MODEL) -> dict[str, Any]:
    async with api.get(f"/v1/models/{model}") as answer:
        found: dict[str, Any] = (await answer.json())["aegaeon"]
        return found


async def until_phase(api: aiohttp.ClientSession, phase: str, model: str = MODEL) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while (state := await state_of(api, model))["phase"] != phase:  # noqa: ASYNC110  # see below
            await asyncio.sleep(0.1)  # another process is watched
    return state


async def ask(api: aiohttp.ClientSession) -> tuple[int, dict[str, Any]]:
    body = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    async with api.post("/v1/completions", json=body) as answer:
        return answer.status, await answer.json()


async def text(api: aiohttp.ClientSession) -> str:
    status, body = await ask(api)
    assert status == 200, body
    answer: str = body["choices"][0]["text"]
    return answer


@pytest.mark.parametrize("damage", DAMAGES)
async def test_changed_weights_fail_the_model_with_the_reason_and_restored_ones_recover_it(
    stack: Stack, api: aiohttp.ClientSession, client: openai.AsyncOpenAI, models: dict[str, Path], damage: str
) -> None:
    change, words = DAMAGES[damage]
    file = models[MODEL] / WEIGHTS
    whole = file.read_bytes()
    expected, innocent = await text(api), await stream(client, INNOCENT, PROMPTS[1])
    streaming = [asyncio.create_task(stream(client, INNOCENT, PROMPTS[1])) for _ in range(2)]
    change(file)
    status, body = await ask(api)
    assert status == 503
    assert body["error"]["code"] == "model_failed"
    for said in (body["error"]["message"], (await until_phase(api, "failed"))["reason"]):
        assert "changed while" in said
        assert WEIGHTS in said
        assert words in said
    assert (await ask(api))[1]["error"]["code"] == "model_failed"
    file.write_bytes(whole)
    assert (await until_phase(api, "cached"))["reason"].startswith("not in the host cache")
    assert await text(api) == expected
    assert await asyncio.gather(*streaming) == [innocent, innocent]
    await until_empty(stack, PATIENCE_S)


async def test_files_that_were_only_touched_stay_served(
    api: aiohttp.ClientSession, client: openai.AsyncOpenAI, models: dict[str, Path]
) -> None:
    expected = await text(api)
    for touched in (WEIGHTS, "config.json"):
        await stream(client, INNOCENT, PROMPTS[1])
        os.utime(models[MODEL] / touched)
        assert await text(api) == expected
        assert (await state_of(api))["phase"] == "cached"


async def test_changed_weights_are_served_once_they_are_applied(
    stack: Stack, api: aiohttp.ClientSession, client: openai.AsyncOpenAI, models: dict[str, Path], tmp_path: Path
) -> None:
    before = await text(api)
    await stream(client, INNOCENT, PROMPTS[1])
    file = models[MODEL] / WEIGHTS
    whole = file.read_bytes()
    zero_in_place(file)
    assert (await ask(api))[1]["error"]["code"] == "model_failed"
    applied = manifests(models, engines=1, **ENGINE)
    status, printed = await asyncio.to_thread(apply, stack, tmp_path, applied)
    assert status == 0, printed
    await until_phase(api, "cached")
    assert await text(api) != before
    await stream(client, INNOCENT, PROMPTS[1])
    file.write_bytes(whole)
    assert (await ask(api))[1]["error"]["code"] == "model_failed"
    await asyncio.to_thread(apply, stack, tmp_path, applied)
    await until_phase(api, "cached")
    assert await text(api) == before
