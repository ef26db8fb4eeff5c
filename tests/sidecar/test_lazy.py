"""What an unloaded model leaves on the device: there again for nothing, or room for others, as is asked first."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sidecar.rig import SLAB, Link, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.engine.sweeper import Kind, survey

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
LONG = PROMPT * 20


async def served(scheduler: Rig, *names: str) -> Link:
    return await scheduler.cached([spec(name, scheduler.models[name]) for name in names])


async def tokens(scheduler: Rig, link: Link, request: str, model: str) -> list[int]:
    """Five tokens of a model that is loaded."""
    link.send(scheduler.open(request, model, PROMPT, max_tokens=5))
    parts = [pb.PrefillPart(seq=seq(request), tokens=len(PROMPT))]
    await link.done(link.send(pb.Turn(model=model, prefill=parts, decode=[seq(request)], steps=5, slabs=8)))
    return await scheduler.received_tokens(request, 5)


async def test_all_slabs_are_backed_by_memory_soon_after_the_start(folder: Path) -> None:
    async with inside(config(folder)) as engine:
        await asyncio.to_thread(engine.await_memory)
        (segment,) = [found for found in survey(folder / "segments") if found.kind is Kind.SEGMENT]
        assert segment.detail == f"64 slabs of {SLAB} bytes, with memory behind them: 0-63"
        engine.check()


async def test_an_evicted_model_whose_slabs_were_not_reused_reloads_without_copies(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link = await served(scheduler, "llama")
        await link.done(link.send(pb.Load(model="llama", slabs=32)))
        before = await tokens(scheduler, link, "before", "llama")
        await link.done(link.send(pb.Unload(model="llama")))
        assert link.memory.slabs_free == 64
        assert link.memory.slabs_kept == link.models["llama"].footprint.weight_slabs
        engine.check()
        assert (await link.done(link.send(pb.Load(model="llama", slabs=32)))).done.bytes == 0
        assert engine.state.table.models["llama"].copy_s < 5
        assert await tokens(scheduler, link, "after", "llama") == before
        engine.check()


async def test_only_reused_slabs_are_copied_again(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, memory={"device_bytes": 12 * SLAB})) as engine:
        link = await served(scheduler, "llama", "qwen2")
        whole = link.models["llama"].footprint.weight_bytes
        other = link.models["qwen2"].footprint.weight_slabs
        assert 12 - other < link.models["llama"].footprint.weight_slabs < 12
        assert (await link.done(link.send(pb.Load(model="llama", slabs=12)))).done.bytes == whole
        before = await tokens(scheduler, link, "before", "llama")
        await link.done(link.send(pb.Unload(model="llama")))
        await link.done(link.send(pb.Load(model="qwen2", slabs=12)))
        assert (await link.refused(link.send(pb.Load(model="llama", slabs=12)))).kind == pb.FAILURE_KIND_NO_MEMORY
        await link.done(link.send(pb.Unload(model="qwen2")))
        moved = (await link.done(link.send(pb.Load(model="llama", slabs=12)))).done.bytes
        assert 0 < moved < whole
        assert await tokens(scheduler, link, "after", "llama") == before
        engine.check()


async def test_kv_grows_into_the_slabs_of_an_evicted_model_and_frees_them_by_swap_out(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)) as roomy:
        link = await served(scheduler, "llama", "qwen2")
        needed = sum(state.footprint.weight_slabs for state in link.models.values()) + 1
        assert roomy.state.kv.device.pool.total > needed
    for path in (scheduler.folder / "segments").iterdir():
        path.unlink()
    async with inside(config(scheduler.folder, memory={"device_bytes": needed * SLAB})) as engine:
        scheduler.links.clear()
        link = await served(scheduler, "llama", "qwen2")
        for name in ("llama", "qwen2"):
            await link.done(link.send(pb.Load(model=name, slabs=needed)))
        before = await tokens(scheduler, link, "before", "llama")
        assert link.memory.slabs_free <= 1
        await link.done(link.send(pb.Unload(model="llama")))
        free = link.memory.slabs_free
        link.send(scheduler.open("long", "qwen2", LONG, max_tokens=5))
        parts = [pb.PrefillPart(seq=seq("long"), tokens=len(LONG))]
        await link.done(link.send(pb.Turn(model="qwen2", prefill=parts, decode=[seq("long")], steps=2, slabs=free)))
        assert link.memory.slabs_free < free - 1
        assert (await link.refused(link.send(pb.Load(model="llama", slabs=free)))).kind == pb.FAILURE_KIND_NO_MEMORY
        await link.done(link.send(pb.SwapOut(seq=seq("long"), epoch=1)))
        await link.done(link.send(pb.Load(model="llama", slabs=free)))
        assert await tokens(scheduler, link, "after", "llama") == before
        engine.check()
