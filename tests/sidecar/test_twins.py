"""One model under two names: one set of slabs, shown by both, free when the second one goes."""

from __future__ import annotations

from sidecar.rig import Link, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.weights.shared_weights import shared

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
BOTH = ("one", "other")


async def served(scheduler: Rig) -> tuple[Link, int]:
    """Two names for a model, a third one for another; returns the slabs of the first."""
    link = await scheduler.link("a")
    names = {"one": "llama", "other": "llama", "foreign": "qwen2"}
    link.send(pb.Catalog(models=[spec(name, scheduler.models[of]) for name, of in names.items()]))
    await link.cached(*names)
    footprint = {name: link.models[name].footprint for name in names}
    assert footprint["one"].content == footprint["other"].content != footprint["foreign"].content
    return link, footprint["one"].weight_slabs


async def tokens(scheduler: Rig, link: Link, request: str, model: str, steps: int = 5) -> list[int]:
    link.send(scheduler.open(request, model, PROMPT, max_tokens=steps))
    parts = [pb.PrefillPart(seq=seq(request), tokens=len(PROMPT))]
    await link.done(link.send(pb.Turn(model=model, prefill=parts, decode=[seq(request)], steps=steps, slabs=8)))
    return await scheduler.received_tokens(request, steps)


async def both_resident(scheduler: Rig) -> tuple[Link, int, list[int]]:
    """Both names loaded; returns the slabs that they share, and what the first one said alone."""
    link, slabs = await served(scheduler)
    await link.done(link.send(pb.Load(model="one", slabs=slabs)))
    before = await tokens(scheduler, link, "before", "one")
    await link.done(link.send(pb.Load(model="other", twin="one")))
    return link, slabs, before


async def test_the_second_name_takes_no_memory_and_gives_the_same_tokens(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, memory={"prefix_reuse": False})) as engine:
        link, slabs = await served(scheduler)
        await link.done(link.send(pb.Load(model="one", slabs=slabs)))
        report = await link.done(link.send(pb.Load(model="other", twin="one")))
        assert (report.done.bytes, link.memory.slabs_free) == (0, 64 - slabs)
        assert shared(engine.state.table) == dict.fromkeys(BOTH, "one")
        engine.check()
        assert await tokens(scheduler, link, "a", "one") == await tokens(scheduler, link, "b", "other")


async def test_one_name_keeps_serving_when_the_other_is_removed_and_the_last_frees_the_slabs(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, memory={"prefix_reuse": False})) as engine:
        link, slabs, before = await both_resident(scheduler)
        await link.done(link.send(pb.Unload(model="one")))
        assert (link.memory.slabs_free, link.memory.slabs_kept) == (64 - slabs, 0)
        await link.done(link.send(pb.Load(model="foreign", slabs=64)))
        assert await tokens(scheduler, link, "between", "other") == before
        engine.check()
        await link.done(link.send(pb.Unload(model="foreign")))
        await link.done(link.send(pb.Unload(model="other")))
        assert link.memory.slabs_free == 64
        engine.check()


async def test_cached_blocks_are_shared_between_names(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link, slabs = await served(scheduler)
        for name in (*BOTH, *BOTH):
            report = await link.done(link.send(pb.Load(model=name, slabs=slabs)))
            await link.done(link.send(pb.Unload(model=name)))
            engine.check()
        assert report.done.bytes == 0
        assert link.memory.slabs_kept == slabs


async def test_a_missing_or_unequal_twin_is_refused_and_nothing_changes(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder)) as engine:
        link, _ = await served(scheduler)
        for loaded in (None, "foreign"):
            if loaded is not None:
                await link.done(link.send(pb.Load(model=loaded, slabs=64)))
            await link.done(link.send(pb.Load(model="other", slabs=64)))  # one that never can be loaded is failed
            await link.done(link.send(pb.Unload(model="other")))
            free = link.memory.slabs_free
            for twin in ("one", "foreign", "unknown"):
                refused = await link.refused(link.send(pb.Load(model="other", slabs=64, twin=twin)))
                assert (refused.kind, refused.memory.slabs_free) == (pb.FAILURE_KIND_NO_MEMORY, free)
        engine.check()


async def test_a_name_removed_from_the_catalog_takes_nothing_from_the_other(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, memory={"prefix_reuse": False})) as engine:
        link, _, before = await both_resident(scheduler)
        link.send(pb.Catalog(models=[spec("other", scheduler.models["llama"])]))
        await link.until(lambda: "one" not in engine.state.table.models and not engine.state.table.withdrawn)
        engine.check()
        assert await tokens(scheduler, link, "after", "other") == before
        await link.done(link.send(pb.Unload(model="other")))
        assert link.memory.slabs_free == 64
        engine.check()
