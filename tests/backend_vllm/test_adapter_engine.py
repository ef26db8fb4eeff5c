"""Adapters in an engine: brought to the host cache and back, added and withdrawn while it serves, failing alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from backend_vllm.adapters import make_adapter
from sidecar.rig import Link, Rig, config, inside, seq, spec

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import AdapterLimits
from aegaeon_sidecar.backends.torch import TorchBackend

PROMPT = [5 + 3 * j % 240 for j in range(70)]
CACHED, FAILED = mpb.MODEL_PHASE_CACHED, mpb.MODEL_PHASE_FAILED
LIMITS = AdapterLimits(max_rank=16, slots=2, nbytes=8 << 20)
SLAB = 256 << 10


class World:
    """One engine with one model and its adapters."""

    def __init__(self, scheduler: Rig, link: Link, engine: Any, base: Path, folders: dict[str, Path]) -> None:
        self.scheduler, self.link, self.engine = scheduler, link, engine
        self.base, self.folders = base, folders
        self._count = 0

    async def catalog(self, *names: str, **options: Any) -> None:
        """Serve these adapters, and wait until each is cached or failed."""
        some = {name: self.folders[name] for name in names}
        self.link.send(pb.Catalog(models=[spec("llama", self.base, adapters=some)], **options))
        await self.link.until(lambda: self._settled() == set(names))

    def _settled(self) -> set[str] | None:
        """The adapters that are cached or failed; None before the model is cached."""
        if self.link.models.get("llama", mpb.ModelState()).phase != CACHED:
            return None
        return {name for phase in (CACHED, FAILED) for name in self.link.adapters("llama", phase)}

    def open(self, adapter: str) -> str:
        self._count += 1
        name = f"r{self._count}"
        self.link.send(self.scheduler.open(name, "llama", PROMPT, max_tokens=6, adapter=adapter))
        return name

    async def turn(self, *names: str) -> list[list[int]]:
        """All of their tokens, in one batch."""
        load = self.link.send(pb.Load(model="llama", slabs=40))
        parts = [pb.PrefillPart(seq=seq(name), tokens=99) for name in names]
        turn = pb.Turn(model="llama", prefill=parts, decode=[seq(name) for name in names], steps=9, slabs=20)
        await self.link.done(self.link.send(turn, after=[load]))
        return [await self.scheduler.received_tokens(name, 6) for name in names]

    async def tokens(self, adapter: str) -> list[int]:
        return (await self.turn(self.open(adapter)))[0]


@pytest.fixture
async def world(scheduler: Rig, folder: Path, family: Any, vllm_backend: Any, tmp_path: Path) -> AsyncIterator[World]:
    base = family("llama")
    folders = {name: make_adapter(base, tmp_path / name, seed=at) for at, name in enumerate("abc")}
    memory = {"device_bytes": 60 * SLAB, "slab_bytes": SLAB, "host_kv_bytes": 16 * SLAB}
    async with inside(config(folder, memory=memory), vllm_backend(adapters=LIMITS)) as engine:
        link = await scheduler.link("a")
        yield World(scheduler, link, engine, base, folders)


async def test_a_broken_adapter_fails_alone_and_is_served_once_it_is_repaired(world: World) -> None:
    broken = world.folders["b"] / "adapter_model.safetensors"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-100])
    await world.catalog("a", "b")
    (reason,) = world.link.adapters("llama", FAILED).values()
    assert reason.startswith("b: adapter_model.safetensors: truncated")
    refused = await world.link.refused(
        world.link.send(world.scheduler.open("never", "llama", PROMPT, adapter="b", max_tokens=1))
    )
    assert refused.kind == pb.FAILURE_KIND_UNKNOWN
    assert "truncated" in refused.reason
    assert await world.tokens("a") != await world.tokens("")
    broken.write_bytes(whole)
    await world.link.until(lambda: "b" in world.link.adapters("llama", CACHED))
    assert await world.tokens("b") != await world.tokens("a")


async def test_more_adapters_than_slots_share_a_batch_and_no_prefix(world: World) -> None:
    await world.catalog("a", "b", "c")
    alone = {name: await world.tokens(name) for name in ("a", "b", "c", "")}
    assert len(set(map(tuple, alone.values()))) == 4
    reuse = world.engine.state.kv.reuse
    assert reuse.on_device == 0
    names = ("c", "a", "", "b")
    assert await world.turn(*map(world.open, names)) == [alone[name] for name in names]
    assert reuse.on_device == 4 * 64  # each finds the blocks of its own adapter


async def test_an_adapter_added_while_the_model_serves_and_one_withdrawn_while_a_sequence_uses_it(world: World) -> None:
    await world.catalog()
    before = await world.tokens("")
    await world.catalog("a")
    expected = await world.tokens("a")
    name = world.open("a")
    await world.catalog("b")
    assert await world.turn(name, world.open("")) == [expected, before]
    await world.catalog("a", "b")
    assert sorted(one.name for one in world.engine.state.table.adapters) == ["a", "b"]


async def test_an_image_that_was_evicted_is_brought_again_for_the_next_sequence(world: World) -> None:
    await world.catalog("a")
    expected = await world.tokens("a")
    with world.engine.state.monitor.changed:
        world.engine._fetcher.adapters.update()  # nothing uses it
    cache = world.engine._cache
    draft = cache.draft("0" * 32, cache.budget_bytes - cache.used_bytes() + 1)
    assert draft is not None
    cache.discard(draft)
    (adapter,) = world.engine.state.table.adapters
    assert not cache.held([adapter.files.identity])
    assert await world.tokens("a") == expected


async def test_backend_torch_says_that_it_has_no_adapters(
    scheduler: Rig, folder: Path, family: Any, tmp_path: Path
) -> None:
    base = family("llama")
    adapters = {"a": make_adapter(base, tmp_path / "a", seed=1)}
    async with inside(config(folder, memory={"device_bytes": 60 * SLAB, "slab_bytes": SLAB}), TorchBackend()):
        link = await scheduler.link("a")
        link.send(pb.Catalog(models=[spec("llama", base, adapters=adapters)]))
        await link.until(lambda: link.adapters("llama", FAILED))
        assert "adapters need backend vllm" in link.adapters("llama", FAILED)["a"]
        assert link.models["llama"].phase == CACHED
