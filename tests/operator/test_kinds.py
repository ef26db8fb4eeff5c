"""Kinds that are defined while the operator runs are watched from then on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from operator_memory import KINDS, At, Call, Memory, kubeconfig, served
from operator_objects import KEY, PLATFORM, gpu_pool, model_pool

from aegaeon_operator.config import OperatorConfig
from aegaeon_operator.kube.client import GPU_POOLS, MODEL_POOLS, connect
from aegaeon_operator.kube.metrics import Metrics
from aegaeon_operator.kube.operator import _work

LATER = {"routes": ("HTTPRoute", "ReferenceGrant", "InferencePool"), "our own": (GPU_POOLS.kind, MODEL_POOLS.kind)}
SOON_S = 60.0
WATCHED = "aegaeon_operator_watched"
ROUTE = At("HTTPRoute", KEY.namespace, "red")


async def until(true: Callable[[], bool], within_s: float = SOON_S) -> None:
    async with asyncio.timeout(within_s):
        while not true():  # noqa: ASYNC110 - what an operator and an API server do tells no event
            await asyncio.sleep(0.05)


@asynccontextmanager
async def working(
    memory: Memory, metrics: Metrics, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Task[None]]:
    """The task of an operator that looks for kinds twice a second, with this API server."""
    config = replace(OperatorConfig(PLATFORM, (), "test"), discover_s=0.5)
    async with served(memory) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder, url)))
        async with connect(metrics.called) as cluster:
            work = asyncio.create_task(_work(config, cluster, metrics))
            try:
                yield work
            finally:
                work.cancel()
                await asyncio.wait([work])


@pytest.mark.parametrize("which", LATER)
async def test_a_kind_that_is_defined_later_is_listed_within_seconds_and_then_watched(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory(kind for kind in KINDS if kind.kind not in LATER[which])
    metrics, failing = Metrics(), [1]
    async with working(memory, metrics, tmp_path, monkeypatch):
        await until(lambda: metrics.registry.get_sample_value("aegaeon_operator_last_list_timestamp_seconds") > 0)
        await until(lambda: any(call.verb == "watch" for call in memory.calls))
        memory.failing = lambda call: (
            429 if call.verb == "list" and call.at.kind == LATER[which][-1] and failing and failing.pop() else 0
        )
        memory.kinds = {(kind.group, kind.plural): kind for kind in KINDS}
        memory.put(gpu_pool())
        memory.put(model_pool("red", "llama", gateway={"parentRefs": [{"name": "public"}]}))
        await until(lambda: ROUTE in memory.objects)
        await until(lambda: Call("watch", At("HTTPRoute", None)) in memory.calls)
        spec = memory.objects[ROUTE]["spec"]
        memory.put({**memory.objects[ROUTE], "spec": {**spec, "rules": []}})
        await until(lambda: memory.objects[ROUTE]["spec"] == spec, 10)
        watched = {
            kind.plural: metrics.registry.get_sample_value(WATCHED, {"resource": kind.plural})
            for kind in (GPU_POOLS, MODEL_POOLS)
        }
        assert watched == {"gpupools": 1, "modelpools": 1}


async def test_definitions_that_are_deleted_and_made_again_are_watched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, metrics = Memory(), Metrics()
    async with working(memory, metrics, tmp_path, monkeypatch) as work:
        watched = Call("watch", At("GpuPool", None))
        await until(lambda: watched in memory.calls)
        memory.undefine([GPU_POOLS])
        await until(lambda: metrics.registry.get_sample_value(WATCHED, {"resource": "gpupools"}) == 0)
        memory.calls.clear()
        memory.kinds = {(kind.group, kind.plural): kind for kind in KINDS}
        await until(lambda: watched in memory.calls)
        memory.put(gpu_pool())
        await until(lambda: "status" in memory.objects[At("GpuPool", *KEY)])
        assert not work.done()
