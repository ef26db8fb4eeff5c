"""Nothing submitted is lost: whatever process is killed while it streams, every client gets its complete output.

Here on unified engines; `test_faults_of_roles.py`, which make test-stack runs, asks the same of prefill and decode.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stack.launch import manifests, running
from stack.traffic import PROMPTS, stream, until_empty

from aegaeon_cli.demo.stack import Stack

ROLES = {"slack": {"engines": 3}, "paper": {"prefill": 1, "decode": 2}}
VICTIMS = {"slack": ("engine-0", "engine-1", "scheduler"), "paper": ("decode-0", "prefill-0", "scheduler")}


@pytest.fixture(scope="module")
def policy() -> str:
    return "slack"


@pytest.fixture(scope="module")
def stack(four_models: dict[str, Path], policy: str) -> Iterator[Stack]:
    with running(manifests(four_models, **ROLES[policy], device="2Mi", policy=policy)) as up:
        yield up


TOKENS = 80  # of an answer: 960 of all, of which a kill cuts off more than half
JOBS = [(model, prompt) for model in ("llama", "mistral", "qwen2", "qwen3") for prompt in PROMPTS]


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """The answer to each job when it runs alone; the first test of the file fills it."""
    return []


class Trigger:
    """Fires once, after so many tokens over all streams."""

    def __init__(self, after: int, action: Callable[[], None]) -> None:
        self._left = after
        self._action = action

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._action()

    @property
    def fired(self) -> bool:
        return self._left <= 0


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("after", [1, 400])
async def test_every_client_gets_its_complete_output_when_a_process_is_killed(
    stack: Stack, client: Any, policy: str, alone: list[str], victim: int, after: int
) -> None:
    if not alone:
        alone += [await stream(client, *job, tokens=TOKENS) for job in JOBS]
    kill = Trigger(after, lambda: stack.kill(VICTIMS[policy][victim]))
    answers = await asyncio.gather(*(stream(client, *job, kill, TOKENS) for job in JOBS))
    assert kill.fired
    assert answers == alone
    await until_empty(stack)


async def test_requests_of_a_killed_client_are_freed(stack: Stack) -> None:
    script = (
        "from aegaeon_cli.demo import clients\n"
        f"client = clients.client({stack.state.url!r})\n"
        "answer = client.completions.create(model='llama', prompt='x', max_tokens=1500, stream=True,\n"
        "    extra_body={'ignore_eos': True})\n"
        "for chunk in answer: print(flush=True)\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    process.kill()
    await process.communicate()
    await until_empty(stack)
