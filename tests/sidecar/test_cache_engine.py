"""The host cache under an engine: more models than it holds, loads that go past it, sidecars that share it and die."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from sidecar.rig import SLAB, Rig, config, inside, outside, scrub, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.engine.engine import Engine

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
ONE = {"host_cache_bytes": 500_000}  # holds one of the tiny models


def weights(folder: Path) -> list[Path]:
    return list((folder / "segments").glob("*.weights"))


def resident_bytes(engine: Engine, name: str) -> bytes:
    model = engine.state.table.models[name]
    assert model.range is not None
    assert model.layout is not None
    return model.range.view(0, model.layout.weight_bytes).tobytes()


async def test_a_model_too_large_for_the_cache_is_served_from_its_files(scheduler: Rig) -> None:
    names = ("llama", "qwen2", "qwen3")
    async with inside(config(scheduler.folder, memory={})) as roomy:
        link = await scheduler.cached([spec(name, scheduler.models[name]) for name in names])
        expected = {}
        for name in names:
            await link.done(link.send(pb.Load(model=name, slabs=32)))
            expected[name] = resident_bytes(roomy, name)
            await link.done(link.send(pb.Unload(model=name)))
    for path in (scheduler.folder / "segments").iterdir():
        path.unlink()
    async with inside(config(scheduler.folder, "b", memory=ONE | {"device_bytes": 12 * SLAB})) as engine:
        link = await scheduler.cached([spec(name, scheduler.models[name]) for name in names], "b", 2)
        assert len(weights(scheduler.folder)) == 1
        assert sum("not in the host cache" in link.models[name].reason for name in names) == 2
        for name in (*names, *names):  # cold, and again after the others took the cache's only place
            await link.done(link.send(pb.Load(model=name, slabs=32)))
            assert resident_bytes(engine, name) == expected[name]
            assert engine._cache.used_bytes() <= ONE["host_cache_bytes"]
            assert engine.state.table.models[name].pinned
            await link.done(link.send(pb.Unload(model=name)))
            assert not engine.state.table.models[name].pinned


async def test_with_every_image_pinned_a_load_bypasses_the_cache(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, memory=ONE)) as engine:
        link = await scheduler.link("a")
        names = ("llama", "qwen3")
        link.send(pb.Catalog(models=[spec(name, scheduler.models[name]) for name in names]))
        await link.cached(*names)
        for name in names:
            await link.done(link.send(pb.Load(model=name, slabs=32)))
        pinned = [name for name in names if engine.state.table.models[name].pinned]
        assert len(pinned) == 1
        assert [path.stem for path in weights(scheduler.folder)] == [engine.state.table.models[pinned[0]].content]


async def test_files_missing_at_a_load_are_named(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, memory={"host_cache_bytes": 1000})):
        copy = scheduler.folder / "copy"
        shutil.copytree(scheduler.models["llama"], copy)
        link = await scheduler.cached([spec("m", copy)])
        (copy / "model.safetensors").unlink()
        failed = await link.refused(link.send(pb.Load(model="m", slabs=32)))
        assert failed.kind == pb.FAILURE_KIND_ENGINE
        assert "model.safetensors" in failed.reason
        assert failed.memory.slabs_free == 64


async def test_after_a_kill_during_loads_the_next_process_serves_and_nothing_is_orphaned(scheduler: Rig) -> None:
    names = ("llama", "qwen2")
    catalog = pb.Catalog(models=[spec(name, scheduler.models[name]) for name in names])
    small = ONE | {"device_bytes": 10 * SLAB}  # no room for both, so that every load copies
    async with outside(config(scheduler.folder, memory=small), scheduler.folder) as process:
        link = await scheduler.link("a")
        link.send(catalog)
        await link.cached(*names)
        for _ in range(200):
            for name in names:
                link.send(pb.Load(model=name, slabs=32))
                last = link.send(pb.Unload(model=name))
        await link.until(lambda: len(link.outcomes) > 20)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        assert last not in link.outcomes
    async with inside(config(scheduler.folder, memory=ONE)) as engine:
        link = await scheduler.link("a", 2)
        link.send(catalog)
        await link.cached(*names)
        await link.done(link.send(pb.Load(model="llama", slabs=32)))
        link.send(scheduler.open("r", "llama", PROMPT, max_tokens=3))
        parts = [pb.PrefillPart(seq=seq("r"), tokens=8)]
        await link.done(link.send(pb.Turn(model="llama", prefill=parts, decode=[seq("r")], steps=3, slabs=8)))
        assert len(await scheduler.received_tokens("r", 3)) == 3
        assert engine._cache.used_bytes() == sum(path.stat().st_size for path in weights(scheduler.folder))
        assert not list((scheduler.folder / "segments").glob("*.partial"))


async def test_two_sidecars_that_want_a_model_at_once_share_one_image(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, "a")) as first, inside(config(scheduler.folder, "b")) as second:
        links = [await scheduler.link("a"), await scheduler.link("b")]
        for link in links:
            link.send(pb.Catalog(models=[spec("m", scheduler.models["llama"])]))
        for link in links:
            await link.until(lambda link=link: "m" in link.models)
            await link.cached("m")
            await link.done(link.send(pb.Load(model="m", slabs=32)))
        assert len(weights(scheduler.folder)) == 1
        assert resident_bytes(first, "m") == resident_bytes(second, "m")
        states: list[mpb.ModelState] = [link.models["m"] for link in links]
        assert states[0].footprint.content == states[1].footprint.content == weights(scheduler.folder)[0].stem


async def test_the_scheduler_receives_the_nodes_cache_contents_whichever_sidecar_filled_it(scheduler: Rig) -> None:
    names = ("llama", "qwen3")
    async with inside(config(scheduler.folder, "a", memory=ONE)), inside(config(scheduler.folder, "b", memory=ONE)):
        first = await scheduler.link("a")
        first.send(pb.Catalog(models=[spec("llama", scheduler.models["llama"])]))
        await first.until(lambda: first.held[-1:] == [{"llama"}])
        second = await scheduler.link("b")
        second.send(pb.Catalog(models=[spec(name, scheduler.models[name]) for name in names]))
        await second.until(lambda: second.held[-1:] == [{"llama"}])
        await second.cached(*names)
        first.send(pb.Catalog())
        await first.until(lambda: first.held[-1:] == [set()])
        await second.done(second.send(pb.Load(model="qwen3", slabs=32)))
        await second.until(lambda: second.held[-1:] == [{"qwen3"}])


async def test_a_load_that_bypasses_the_cache_evicts_no_model_of_the_catalog(scheduler: Rig) -> None:
    catalog = [spec(name, scheduler.models[name]) for name in ("llama", "qwen3")]
    async with inside(config(scheduler.folder, memory=ONE)) as engine:
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=catalog))
        await link.cached("llama", "qwen3")
        await link.done(link.send(pb.Load(model="qwen3", slabs=32, past_host=True)))
        assert weights(scheduler.folder)[0].stem == engine.state.table.models["llama"].content
        await link.done(link.send(pb.Unload(model="qwen3")))
        scrub(engine)
        link.send(pb.Catalog(models=catalog[1:]))
        await link.until(lambda: link.held[-1:] == [set()])
        await link.done(link.send(pb.Load(model="qwen3", slabs=32, past_host=True)))
        assert weights(scheduler.folder)[0].stem == engine.state.table.models["qwen3"].content
