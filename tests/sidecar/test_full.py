"""No room on the disk, in shared memory or in the host cache: it is said, others are served, nothing is left over."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sidecar.mounts import enlarge, small_tmpfs
from sidecar.rig import SLAB, START_S, Link, Rig, config, inside, outside, seq, spec
from sidecar.web import ANYWHERE, Server

from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.engine.sweeper import survey

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def is_settled(state: mpb.ModelState) -> bool:
    return state.absent or state.phase != mpb.MODEL_PHASE_FETCHING


async def fetched_or_absent(link: Link, *names: str) -> None:
    """Each is cached or failed, or is fetched when it is asked for."""
    await link.until(lambda: all(name in link.models and is_settled(link.models[name]) for name in names))


def fill_up(folder: Path) -> None:
    with (folder / "others").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


async def serves(scheduler: Rig, link: Link, model: str, request: str) -> None:
    link.send(scheduler.open(request, model, PROMPT, max_tokens=5))
    load = link.send(pb.Load(model=model, slabs=64))
    parts = [pb.PrefillPart(seq=seq(request), tokens=len(PROMPT))]
    await link.done(
        link.send(pb.Turn(model=model, prefill=parts, decode=[seq(request)], steps=5, slabs=8), after=[load])
    )
    assert len(await scheduler.received_tokens(request, 5)) == 5


async def test_a_model_without_room_on_the_disk_is_absent_with_the_numbers_and_fetched_once_it_fits(
    web: Server, scheduler: Rig
) -> None:
    web.files = {path.name: path.read_bytes() for path in scheduler.models["llama"].iterdir()}
    source = mpb.ModelSource(http=mpb.HttpSource(url=web.address))
    catalog = pb.Catalog(models=[mpb.ModelSpec(name="far", source=source), spec("near", scheduler.models["qwen2"])])
    with small_tmpfs(scheduler.folder / "small", "128k") as small:
        async with inside(
            config(scheduler.folder, disk={"folder": str(small), "budget_bytes": 1 << 30}, sources=ANYWHERE)
        ) as engine:
            link = await scheduler.link("a")
            link.send(catalog)
            await fetched_or_absent(link, "far", "near")
            assert link.models["far"].absent
            assert "bytes, the disk has" in link.models["far"].reason
            assert "make room" in link.models["far"].reason
            assert str(small) not in link.models["far"].reason
            await serves(scheduler, link, "near", "r")
            enlarge(small, "4m")
            catalog.retry = True
            link.send(catalog)
            await link.until(lambda: link.models["far"].phase == mpb.MODEL_PHASE_CACHED)
            await serves(scheduler, link, "far", "s")
            engine.check()
            assert not any(found.orphaned for found in survey(scheduler.folder / "segments"))


async def test_too_little_shared_memory_for_the_host_tier_ends_the_process_with_one_sentence(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with small_tmpfs(folder / "small", "1m") as small:
        settings = config(folder, segments=str(small / "segments"))
        async with outside(settings, folder) as process, asyncio.timeout(START_S):
            assert await process.wait() == 2
        error = capfd.readouterr().err
        assert f"needs {64 * SLAB + 4096} bytes, its file system has" in error
        assert "enlarge it" in error
        assert "Traceback" not in error
        assert not any(found.orphaned for found in survey(small / "segments"))
        enlarge(small, "16m")
        async with inside(settings | {"scheduler": f"unix:{folder}/no-scheduler.sock"}) as engine:
            engine.check()


async def test_a_model_too_large_for_shared_memory_is_served_from_its_files_and_the_remedy_logged(
    scheduler: Rig,
) -> None:
    names = ("llama", "qwen2")
    size = 65 * SLAB + 600 * 1024  # the host tier, and one of the models
    with small_tmpfs(scheduler.folder / "small", str(size)) as small:
        async with inside(config(scheduler.folder, segments=str(small / "segments"))) as engine:
            link = await scheduler.link("a")
            link.send(pb.Catalog(models=[spec(name, scheduler.models[name]) for name in names]))
            await fetched_or_absent(link, *names)
            reasons = [link.models[name].reason for name in names]
            assert reasons[0] == ""
            assert "make the tmpfs larger" in reasons[1]
            assert str(small) not in reasons[1]  # which tenants read
            for name in (*names, *names):
                await serves(scheduler, link, name, f"{name}-{link.last_id}")
                await link.done(link.send(pb.Unload(model=name)))
            engine.check()
            assert not any(found.orphaned for found in survey(small / "segments"))
        assert [path.suffix for path in (small / "segments").glob("*.*s")].count(".weights") == 1
        assert not list((small / "segments").glob("*.partial"))


async def test_a_load_bypasses_the_cache_when_others_fill_shared_memory(
    scheduler: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("llama", "qwen2")
    with small_tmpfs(scheduler.folder / "small", str(65 * SLAB + 600 * 1024)) as small:
        settings = config(scheduler.folder, segments=str(small / "segments"), memory={"host_cache_bytes": 500_000})
        async with inside(settings) as engine:
            link = await scheduler.link("a")
            link.send(pb.Catalog(models=[spec(name, scheduler.models[name]) for name in names]))
            await fetched_or_absent(link, *names)
            draft = engine._cache.draft

            def crowded(*given: Any, **named: Any) -> Any:
                made = draft(*given, **named)
                fill_up(small)
                return made

            monkeypatch.setattr(engine._cache, "draft", crowded)
            await serves(scheduler, link, "qwen2", "r")
            assert (small / "others").exists()
            engine.check()
        assert not [path for path in (small / "segments").iterdir() if path.suffix in (".weights", ".partial")]
