"""Models for whole stacks, and the stack's log beside every failure."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from stack.launch import CONTEXT

from aegaeon_cli.demo.stack import Stack

LOG_CHARACTERS = 6000


@pytest.fixture(scope="session")
def four_models(make_model: Callable[..., Path]) -> dict[str, Path]:
    """One directory per architecture with room for long answers."""
    names = ("llama", "mistral", "qwen2", "qwen3")
    return {name: make_model(name, max_position_embeddings=CONTEXT) for name in names}


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
