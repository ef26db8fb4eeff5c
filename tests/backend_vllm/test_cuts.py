"""A prompt's logits are the same bits wherever it is cut, and beside other prompts, whichever kernels a model has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from backend_vllm.families import BASE, HEAD, needs_amx, save
from cuts import LENGTHS, logits_of, some_cuts, together, tokens_of

CASES = [
    *(("llama", dtype) for dtype in ("float32", "bfloat16", "float16")),
    *((name, "float32") for name in ("gemma2", "gptoss", "mixtral", "qwen3moe")),
    *((name, "bfloat16") for name in ("gemma2", "gptoss", "mixtral", "gptq", "awq")),
    pytest.param("mxfp4", "bfloat16", marks=needs_amx),
]


def assert_the_same(model: Any) -> None:
    table = np.random.default_rng(0).permutation(24).astype(np.int32)
    for length in LENGTHS[:-1]:
        prompt = tokens_of(length)
        whole = logits_of(model.backend, model.name, prompt, [], table)
        assert whole.isfinite().all()
        for cuts in some_cuts(length):
            assert torch.equal(logits_of(model.backend, model.name, prompt, cuts, table), whole), (length, cuts)
    prompts = [tokens_of(length) for length in (129, 40, 5, 1)]
    for prompt, logits in zip(prompts, together(model.backend, model.name, prompts, table), strict=True):
        assert torch.equal(logits, logits_of(model.backend, model.name, prompt, [], table))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_prompt_gives_the_same_bits_wherever_it_is_cut_and_beside_others(
    name: str, dtype: str, family: Any, vllm_backend: Any, rig: Any
) -> None:
    assert_the_same(rig(vllm_backend(dtype), family(name, dtype)))


def test_so_does_a_model_whose_sums_in_bfloat16_depend_on_the_number_of_rows(
    tmp_path: Path, vllm_backend: Any, rig: Any
) -> None:
    wide = BASE | HEAD | {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 1}
    directory = save("LlamaConfig", wide | {"initializer_range": 0.05}, tmp_path / "wide", "bfloat16")
    assert_the_same(rig(vllm_backend("bfloat16"), directory))
