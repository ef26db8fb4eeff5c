"""Engines are killed, or stopped for so long that they are given up, at any moment of loads, swaps and hand-offs."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stack.launch import manifests, running
from stack.traffic import PROMPTS, stream, until_empty

from aegaeon_cli.demo.stack import Stack
from aegaeon_sidecar.engine.sweeper import survey

ENGINES = ("prefill-0", "prefill-1", "decode-0", "decode-1")  # one of each role is left at any time
ROUNDS = 12
SWITCHING_S = 1.5  # within so long after the requests have come, models and KV caches move all the time
START_S = 60.0  # for an engine to come again
GIVEN_UP_S = 2.6  # longer than the scheduler believes in a silent sidecar


@pytest.fixture
def stack(four_models: dict[str, Path]) -> Iterator[Stack]:
    with running(manifests(four_models, prefill=2, decode=2, device="2Mi", policy="paper")) as up:
        yield up


async def strike(stack: Stack, chance: random.Random) -> None:
    """At some moment: kill -9, or a stop after which the engine is killed, or wakes up and finds itself given up."""
    victim, way = chance.choice(ENGINES), chance.choice(("kill", "stop and kill", "stop and wake"))
    await asyncio.sleep(chance.uniform(0, SWITCHING_S))  # the moment is the point: any
    pid = stack.pod(victim)
    if way != "kill":
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(GIVEN_UP_S)  # silent for so long, as far as the scheduler can tell
    os.kill(pid, signal.SIGCONT if way == "stop and wake" else signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
async def test_every_client_gets_its_answer_and_nothing_is_orphaned(stack: Stack, client: Any, seed: int) -> None:
    chance = random.Random(seed)
    jobs = [(model, prompt) for model in ("llama", "mistral", "qwen2", "qwen3") for prompt in PROMPTS]
    expected = [await stream(client, *job) for job in jobs]
    for _ in range(ROUNDS):
        answers = asyncio.gather(*(stream(client, *job) for job in jobs))
        await strike(stack, chance)
        assert await answers == expected
        await until_empty(stack)
        await until_swept(stack)


async def until_swept(stack: Stack) -> None:
    """An engine that was killed removes what it left when it has come again, which takes longer than the answers."""
    deadline = time.monotonic() + START_S
    while left := left_behind(stack):
        assert time.monotonic() < deadline, f"left behind: {left}"
        await asyncio.sleep(0.1)  # no event signals that a folder is clean


def left_behind(stack: Stack) -> list[str]:
    """What `aegaeon doctor --check` would call orphaned in this run, and files of more lives than there are engines."""
    found = survey(Path(stack.state.segments))
    lives = [item.path.name for item in found if item.path.suffix == ".kv"]
    return [str(item.path) for item in found if item.orphaned] + lives[len(ENGINES) :]
