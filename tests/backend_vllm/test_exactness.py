"""Tokens under random programs of switches, swaps, hand-offs and cancels, executed by vLLM, equal those of each
sequence run alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from backend_vllm.adapters import make_adapter
from backend_vllm.families import needs_amx
from sidecar.programs import Machine, run_identically
from sidecar.rig import Rig

from aegaeon_sidecar.backends import AdapterLimits

TOGETHER = [
    ("float32", ("llama", "qwen3"), 0),
    ("float32", ("gemma2", "mistral", "phi3"), 1),
    ("float32", ("gptoss", "mixtral", "qwen3moe", "gemma3"), 2),
    ("bfloat16", ("gptq", "awq", "qwen3"), 3),
    ("bfloat16", ("llama", "gemma2", "gptoss"), 4),
]
WITH_AMX = pytest.param("bfloat16", ("mxfp4", "gptoss", "qwen3"), 5, marks=needs_amx)
MANY = [
    pytest.param(dtype, models, seed + 10 * more, marks=pytest.mark.slow)
    for dtype, models, seed in TOGETHER
    for more in range(1, 16)
]


@pytest.mark.parametrize(("dtype", "models", "seed"), [*TOGETHER, WITH_AMX, *MANY])
async def test_any_program_of_switches_swaps_hand_offs_and_cancels_gives_the_tokens_of_running_alone(
    scheduler: Rig, family: Any, vllm_backend: Any, dtype: str, models: tuple[str, ...], seed: int
) -> None:
    machine = Machine(partial(vllm_backend, dtype), dtype=dtype, slab_bytes=256 << 10, slabs=60)
    directories = {name: family(name, dtype) for name in models}
    pair = vllm_backend(dtype), vllm_backend(dtype)
    await run_identically(scheduler, directories, seed, *pair, machine)


WITH_ADAPTERS = [
    pytest.param(dtype, seed, marks=[pytest.mark.slow] if seed > 20 else [])
    for dtype, seeds in (("float32", (20, *range(21, 31))), ("bfloat16", tuple(range(31, 41))))
    for seed in seeds
]


@pytest.mark.parametrize(("dtype", "seed"), WITH_ADAPTERS)
async def test_any_program_with_adapters_of_its_models_gives_the_tokens_of_running_alone(
    scheduler: Rig, family: Any, vllm_backend: Any, tmp_path: Path, dtype: str, seed: int
) -> None:
    limits = AdapterLimits(max_rank=16, slots=2, nbytes=8 << 20)
    machine = Machine(partial(vllm_backend, dtype, limits), dtype=dtype, slab_bytes=256 << 10, slabs=60)
    directories = {name: family(name, dtype) for name in ("llama", "qwen3")}
    adapters = {
        "llama": {name: make_adapter(directories["llama"], tmp_path / name, seed=at) for at, name in enumerate("abc")},
        "qwen3": {"d": make_adapter(directories["qwen3"], tmp_path / "d", seed=4, targets=("q_proj", "down_proj"))},
    }
    pair = machine.backend(), machine.backend()
    await run_identically(scheduler, directories, seed, *pair, machine, adapters)
