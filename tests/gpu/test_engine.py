"""Engines on a GPU: random programs of switches, swaps, hand-offs and cancels give the tokens of running alone."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from aegaeon_native import CudaDevice
from aegaeon_sidecar.backends.torch import TorchBackend

pytest.importorskip("grpc", reason="engines speak gRPC; this Python has none")
pytest.importorskip("pydantic", reason="engines read their settings with pydantic; this Python has none")
from sidecar.programs import Machine, run_identically
from sidecar.rig import rig

pytestmark = pytest.mark.gpu

# Chunks of whole blocks: a prompt is computed by the same kernels alone, in company, and behind what is shared of it.
GPU = Machine(
    backend=partial(TorchBackend, device="cuda:0", dtype="bfloat16"),
    device="cuda:0",
    dtype="bfloat16",
    slab_bytes=2 << 20,
    slabs=6,
    prefill_chunk_tokens=16,
    chunk=16,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="aegaeon-test-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("seed", range(200, 206))
def test_any_program_gives_the_tokens_of_running_alone(
    gpu: CudaDevice, folder: Path, tiny_models: dict[str, Path], seed: int
) -> None:
    asyncio.run(_run_identically(folder, tiny_models, seed, GPU))


def test_any_program_gives_the_same_tokens_when_loads_bypass_a_full_host_cache(
    gpu: CudaDevice, folder: Path, tiny_models: dict[str, Path]
) -> None:
    asyncio.run(_run_identically(folder, tiny_models, 206, replace(GPU, host_cache_bytes=1000)))


async def _run_identically(folder: Path, models: dict[str, Path], seed: int, machine: Machine) -> None:
    async with rig(folder) as scheduler:
        await run_identically(scheduler, models, seed, machine.backend(), machine.backend(), machine)
