"""Tokens under random programs of switches, swaps, hand-offs and cancels, executed by vLLM, equal those of each
sequence run alone."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sidecar.programs import Machine, run_identically
from sidecar.rig import Rig

TOGETHER = [
    ("float32", ("llama", "qwen3"), 0),
    ("float32", ("gemma2", "mistral", "phi3"), 1),
    ("float32", ("gptoss", "mixtral", "qwen3moe", "gemma3"), 2),
    ("bfloat16", ("gptq", "awq", "qwen3"), 3),
    ("bfloat16", ("llama", "gemma2", "gptoss"), 4),
]
MANY = [
    pytest.param(dtype, models, seed + 10 * more, marks=pytest.mark.slow)
    for dtype, models, seed in TOGETHER
    for more in range(1, 16)
]


@pytest.mark.parametrize(("dtype", "models", "seed"), [*TOGETHER, *MANY])
async def test_any_program_of_switches_swaps_hand_offs_and_cancels_gives_the_tokens_of_running_alone(
    scheduler: Rig, folder: Any, family: Any, vllm_backend: Any, dtype: str, models: tuple[str, ...], seed: int
) -> None:
    machine = Machine(partial(vllm_backend, dtype), dtype=dtype, slab_bytes=256 << 10, slabs=60)
    directories = {name: family(name, dtype) for name in models}
    pair = vllm_backend(dtype), vllm_backend(dtype)
    await run_identically(scheduler, folder, directories, seed, *pair, machine)
