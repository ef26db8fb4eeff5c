"""An engine that dies and takes longer to restart than requests may wait, as on an overloaded machine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from stack.launch import manifests, running
from stack.traffic import PROMPTS, stream

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import Stack


@pytest.fixture
def stack(four_models: dict[str, Path]) -> Iterator[Stack]:
    with running(manifests({"llama": four_models["llama"]}, engines=1, hold="500ms")) as up:
        yield up


async def until_served(client: Any, prompt: str) -> str:
    """A first answer: a model that is still being read takes longer than a request may wait, too."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await stream(client, "llama", prompt)
            except openai.InternalServerError:
                await asyncio.sleep(0.2)  # as a client would after Retry-After


async def test_streams_resume_when_the_only_engine_is_back(stack: Stack) -> None:
    async with clients.async_client(stack.state.url, timeout=120) as api:
        expected = [await until_served(api, prompt) for prompt in PROMPTS]
        begun = [asyncio.Event() for _ in PROMPTS]
        streams = [
            asyncio.create_task(stream(api, "llama", prompt, one.set))
            for prompt, one in zip(PROMPTS, begun, strict=True)
        ]
        await asyncio.gather(*(one.wait() for one in begun))
        os.kill(stack.pod("engine-0"), signal.SIGKILL)
        assert await asyncio.gather(*streams) == expected
