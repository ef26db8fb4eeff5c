"""What a backend made of a model that was described and is never registered: withdrawn meanwhile, or refused."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest


@pytest.mark.parametrize("name", ["llama", "gptq"])
def test_a_model_that_is_never_registered_goes_with_its_layout(family: Any, vllm_backend: Any, name: str) -> None:
    """Where its image is baked that is all of its weights, in memory."""
    backend, directory = vllm_backend("bfloat16"), family(name, "bfloat16")
    before = {id(shell) for shell in _shells()}
    layout = backend.describe(directory, 0)
    assert (layout.bake is not None) is (name == "gptq")
    made = [weakref.ref(shell.model) for shell in _shells() if id(shell) not in before]
    assert len(made) == 1
    del layout
    gc.collect()
    assert made[0]() is None, "it is kept"


def _shells() -> list[Any]:
    from aegaeon_sidecar.backends.vllm.shell import Shell

    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, Shell)]
