"""A GPU that is lost again and again is left alone: no request fails, no token differs, and a probe brings it back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sidecar.driver_double import compiled_double
from stack.double_engine import DRIVER, PROBE_RULES, RULES
from stack.pods import START_S, Pods, running
from stack.traffic import PROMPTS, stream

MODELS = ("llama", "mistral", "qwen2", "qwen3")
SLAB = 2 << 20
MEMORY = {"device_bytes": 4 * SLAB, "slab_bytes": SLAB, "host_kv_bytes": 16 * SLAB, "host_cache_bytes": 64 << 20}
SICK, ORDINAL = "engine-1", 1
UUID = "a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1"
COPIES = ("cuMemcpyAsync", "cuMemcpyBatchAsync_v2")


def fail_after(rules: Path, copies: int) -> None:
    """Each process from here on loses its GPU at the copy after so many."""
    rules.write_text("".join(f"{call} 719 {copies}\n" for call in COPIES))


@asynccontextmanager
async def kept(pods: Pods, statuses: list[int]) -> AsyncIterator[None]:
    """The engine is started again whenever it ends, as by a kubelet; how it ended is noted."""

    async def keep() -> None:
        while True:
            statuses.append(await pods.processes[SICK].wait())
            await pods.begin_engine(SICK)

    keeper = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


@pytest.mark.timeout(300)
async def test_a_gpu_that_is_lost_again_and_again_is_left_alone_until_it_is_healthy(
    four_models: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copy(compiled_double(), tmp_path / "driver.so")
    rules, probe_rules = tmp_path / "rules", tmp_path / "probe-rules"
    double: dict[str, Any] = {
        "engine": "stack.double_engine",
        "memory": MEMORY,
        "hold_s": START_S,  # no request is to fail because the machine is busy
        "settings": lambda name: {"device": f"cuda:{ORDINAL if name == SICK else 0}"},
        "environment": lambda name: {
            DRIVER: str(tmp_path / "driver.so"),
            RULES: str(rules if name == SICK else tmp_path / "none"),
            PROBE_RULES: str(probe_rules),
        },
    }
    jobs = [(model, prompt) for model in MODELS for prompt in PROMPTS]
    async with running({name: four_models[name] for name in MODELS}, engines=2, **double) as (pods, client):
        expected = await asyncio.gather(*(stream(client, *job) for job in jobs))
        fail_after(rules, 1)
        fail_after(probe_rules, 1)
        statuses: list[int] = []
        async with kept(pods, statuses):
            pods.processes[SICK].kill()
            left_alone = asyncio.create_task(pods.status(lambda status: bool(status.pool.suspects)))
            while not left_alone.done():
                assert await asyncio.gather(*(stream(client, *job) for job in jobs)) == expected
            (suspect,) = (await left_alone).pool.suspects
            assert (suspect.instance, suspect.node, suspect.uuid, suspect.losses) == (SICK, "n", UUID, 2)
            assert "(CUDA error 719)" in suspect.error
            assert statuses == [-9, 1, 1], "killed by the test, lost twice"
            await pods.said(SICK, f"GPU {UUID} is not healthy")
            status = await pods.status()
            assert [engine.instance for engine in status.pool.instances if engine.alive] == ["engine-0"]
            assert await asyncio.gather(*(stream(client, *job) for job in jobs)) == expected

            rules.unlink()
            probe_rules.unlink()
            await pods.status(lambda status: not status.pool.suspects)
            await pods.status(lambda status: SICK in {engine.instance for engine in status.pool.instances})
            assert await asyncio.gather(*(stream(client, *job) for job in jobs)) == expected
            assert statuses == [-9, 1, 1]
