"""Models for whole stacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from stack.launch import CONTEXT


@pytest.fixture(scope="session")
def four_models(make_model: Callable[..., Path]) -> dict[str, Path]:
    """One directory per architecture with room for long answers."""
    names = ("llama", "mistral", "qwen2", "qwen3")
    return {name: make_model(name, max_position_embeddings=CONTEXT) for name in names}
