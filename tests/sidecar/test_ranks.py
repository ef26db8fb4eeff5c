"""An engine whose ranks share every model: tokens of transformers, one view for the scheduler, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.rig import SLAB, Link, Rig, config, inside, scrub, seq, spec

from aegaeon_cli.demo.verify import verify
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.engine.engine import Engine

HEAD = [5 + 7 * i % 300 for i in range(32)]  # two blocks
LENGTH = 24


def two(folder: Path, instance: str = "a", **memory: int) -> dict[str, Any]:
    return config(folder, instance, ranks=2, memory={"slab_bytes": SLAB // 2, **memory})


def pair() -> TorchBackend:
    return TorchBackend(ranks=2)


async def serving(scheduler: Rig, name: str, models: dict[str, Path]) -> Link:
    link = await scheduler.link(name)
    link.send(pb.Catalog(models=[spec(model, directory) for model, directory in models.items()]))
    await link.until(lambda: all(model in link.models for model in models))
    await link.until(lambda: all(link.models[model].phase != mpb.MODEL_PHASE_FETCHING for model in models))
    return link


async def prefill(link: Link, model: str, names: list[str], steps: int) -> None:
    parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in names]
    await link.done(link.send(pb.Turn(model=model, prefill=parts, decode=seqs(names), steps=steps, slabs=16)))


async def decode(link: Link, model: str, names: list[str]) -> None:
    """To their ends."""
    await link.done(link.send(pb.Turn(model=model, decode=seqs(names), steps=LENGTH, slabs=16)))


def seqs(names: list[str]) -> list[mpb.SeqId]:
    return [seq(name) for name in names]


async def switch(link: Link, leaves: str, sequences: list[str], comes: str) -> None:
    """KV and weights of one model leave, the weights of the other come."""
    fences = [link.send(pb.SwapOut(seq=seq(name), epoch=1)) for name in sequences]
    fences.append(link.send(pb.Unload(model=leaves)))
    await link.done(link.send(pb.Load(model=comes, slabs=32), after=fences))


def assert_likeliest(directory: Path, prompt: list[int], output: list[int]) -> None:
    """transformers, fed with our tokens, finds none likelier than ours."""
    found = verify(directory, prompt, output)
    assert found.identical, found
    assert found.positions == len(output) > 0


def assert_empty(engine: Engine) -> None:
    engine.check()
    assert engine.state.kv.device.slabs_free == engine.state.kv.device.pool.total
    assert engine.state.kv.host.slabs_free == engine.state.kv.host.pool.total


async def test_tokens_are_those_of_transformers_through_switches_swaps_reuse_and_cancels(scheduler: Rig) -> None:
    models = {name: scheduler.models[name] for name in ("llama", "qwen3")}
    prompts = {"one": [*HEAD, 9], "two": [*HEAD, 77, 3], "other": HEAD[::-1], "closed": HEAD[:20]}
    async with inside(two(scheduler.folder), pair()) as engine:
        link = await serving(scheduler, "a", models)
        for name, prompt in prompts.items():
            link.send(scheduler.open(name, "qwen3" if name == "other" else "llama", prompt, max_tokens=LENGTH))
        await link.done(link.send(pb.Load(model="llama", slabs=32)))
        await prefill(link, "llama", ["one", "closed"], 5)
        await prefill(link, "llama", ["two"], 5)
        await scheduler.received_tokens("two", 1)
        assert scheduler.tokens["two", 0][0].cached_tokens == len(HEAD)
        link.send(pb.Close(seq=seq("closed"), epoch=1))
        await switch(link, "llama", ["one", "two"], "qwen3")
        await prefill(link, "qwen3", ["other"], 9)
        await switch(link, "qwen3", ["other"], "llama")
        for name in ("one", "two"):
            await link.done(link.send(pb.SwapIn(seq=seq(name), epoch=1, slabs=8)))
        cancelled = link.send(pb.Turn(model="llama", decode=seqs(["one"]), steps=4, slabs=8))
        link.send(pb.CancelCommand(id=cancelled))
        await link.outcome(cancelled)
        await decode(link, "llama", ["one", "two"])
        await switch(link, "llama", [], "qwen3")
        await link.done(link.send(pb.SwapIn(seq=seq("other"), epoch=1, slabs=8)))
        await decode(link, "qwen3", ["other"])
        await link.done(link.send(pb.Unload(model="qwen3")))
        for name in ("one", "two", "other"):
            directory = models["qwen3" if name == "other" else "llama"]
            assert_likeliest(directory, prompts[name], await scheduler.received_tokens(name, LENGTH))
        assert_empty(engine)


async def test_the_scheduler_sees_one_engine_of_smaller_models(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, "unsharded")), inside(two(scheduler.folder), pair()) as engine:
        unsharded = (await serving(scheduler, "unsharded", {"m": scheduler.models["qwen2"]})).models["m"].footprint
        link = await serving(scheduler, "a", {"m": scheduler.models["qwen2"]})
        part = link.models["m"].footprint
        assert link.hello.device == "cpu x 2"
        assert (link.hello.slabs, link.hello.host_slabs) == (128, 64)
        assert part.weight_bytes < 0.51 * unsharded.weight_bytes
        assert part.kv_block_bytes * 2 == unsharded.kv_block_bytes
        assert engine._cache.used_bytes() == unsharded.weight_bytes + 2 * part.weight_bytes
        assert (await link.done(link.send(pb.Load(model="m", slabs=32)))).done.bytes == part.weight_bytes


async def test_a_model_that_the_ranks_cannot_share_fails_and_the_others_are_served(scheduler: Rig) -> None:
    async with inside(two(scheduler.folder), pair()):
        link = await serving(scheduler, "a", {name: scheduler.models[name] for name in ("mistral", "llama")})
        assert link.models["mistral"].phase == mpb.MODEL_PHASE_FAILED
        assert "num_key_value_heads is 1, which 2 accelerators cannot share" in link.models["mistral"].reason
        assert link.models["llama"].phase == mpb.MODEL_PHASE_CACHED


async def test_kv_of_an_engine_with_another_number_of_ranks_is_not_adopted(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, "unsharded")), inside(two(scheduler.folder), pair()):
        source = await serving(scheduler, "unsharded", {"m": scheduler.models["qwen2"]})
        target = await serving(scheduler, "a", {"m": scheduler.models["qwen2"]})
        await source.done(source.send(pb.Load(model="m", slabs=32)))
        for link in (source, target):
            link.send(scheduler.open("r", "m", HEAD))
        await prefill(source, "m", ["r"], 1)
        handle = (await source.done(source.send(pb.SwapOut(seq=seq("r"), epoch=1)))).done.handle
        refused = await target.refused(target.send(pb.Adopt(seq=seq("r"), epoch=1, handle=handle, slabs=8)))
        assert refused.kind == pb.FAILURE_KIND_UNKNOWN
        assert "has KV shape l2-t16-h4-d16-float32, its model l2-t16-h2-d16-float32" in refused.reason


async def test_evicted_weights_are_reloaded_through_the_host_cache(
    scheduler: Rig, make_model: Callable[..., Path]
) -> None:
    models = {name: make_model("llama", seed=seed) for seed, name in enumerate(("first", "second"))}
    async with inside(two(scheduler.folder, host_cache_bytes=400_000), pair()) as engine:  # it holds one at a time
        link = await serving(scheduler, "a", models)
        for name in ("second", "first", "second"):
            await link.done(link.send(pb.Load(model=name, slabs=32)))
            link.send(scheduler.open(name, name, HEAD, max_tokens=2))
            await prefill(link, name, [name], 2)
            assert_likeliest(models[name], HEAD, await scheduler.received_tokens(name, 2))
            await link.done(link.send(pb.Unload(model=name)))
            scrub(engine)
        await link.done(link.send(pb.Load(model="first", slabs=32)))
        refused = await link.refused(link.send(pb.Load(model="second", slabs=32)))
        assert refused.kind == pb.FAILURE_KIND_ENGINE, "the other one is pinned"
        assert "second: the weights need" in refused.reason
        await link.done(link.send(pb.Unload(model="first")))
        assert_empty(engine)


async def test_weights_too_large_for_the_host_cache_are_refused(scheduler: Rig) -> None:
    async with inside(two(scheduler.folder, host_cache_bytes=100_000), pair()):
        state = (await serving(scheduler, "a", {"m": scheduler.models["llama"]})).models["m"]
        assert state.phase == mpb.MODEL_PHASE_FAILED
        assert "which they pass through, has 100000; raise host_cache_bytes" in state.reason
