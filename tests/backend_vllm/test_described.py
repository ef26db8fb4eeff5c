"""What is kept of models that are gone: nothing, whether they were served or only described."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from backend_vllm.families import BASE, HEAD, save


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

    return _alive(Shell)


def test_rotary_tables_go_with_the_last_model_that_uses_them(vllm_backend: Any, rig: Any, tmp_path: Path) -> None:
    """Of a context of 131,072 tokens one takes 33 MB."""
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    backend = vllm_backend("bfloat16")
    before = {id(table) for table in _alive(RotaryEmbedding)}
    for number in range(2):
        settings = BASE | HEAD | {"num_hidden_layers": 1, "max_position_embeddings": 777}
        model = rig(backend, save("LlamaConfig", settings, tmp_path / str(number), "bfloat16"))
        model.logits([5, 6, 7], 0, [1])
    made = [weakref.ref(table) for table in _alive(RotaryEmbedding) if id(table) not in before]
    assert len(made) == 1, "models share it"
    backend.forget("0")
    gc.collect()
    assert made[0]() is not None
    del model
    backend.forget("1")
    gc.collect()
    assert made[0]() is None, "it is kept"


def _alive(kind: type) -> list[Any]:
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, kind)]
