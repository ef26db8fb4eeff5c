"""Models for whole stacks, and the stack's log beside every failure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path

import openai
import pytest
from stack.launch import CONTEXT

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import Stack

LOG_CHARACTERS = 6000
PATIENCE_S = 120  # for one answer, on a machine that is busy with much else


@pytest.fixture(scope="session")
def four_models(make_model: Callable[..., Path]) -> dict[str, Path]:
    """One directory per architecture with room for long answers."""
    names = ("llama", "mistral", "qwen2", "qwen3")
    return {name: make_model(name, max_position_embeddings=CONTEXT) for name in names}


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[openai.AsyncOpenAI]:
    """An OpenAI client of the test's `stack`, which tries nothing twice."""
    async with clients.async_client(stack.state.url, timeout=PATIENCE_S) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the last lines of the stacks that it used."""
    report = yield
    if report.failed:
        for name, stack in item.funcargs.items():
            if isinstance(stack, Stack):
                report.sections.append((f"log of {name}", stack.log()[-LOG_CHARACTERS:]))
    return report
