"""The sidecar as a process: it shuts down on SIGTERM, leaves nothing behind, and removes orphans of a killed one."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from sidecar.rig import START_S, Link, Rig, config, outside, seq, spec

from aegaeon_cli.demo.stack import free_port
from aegaeon_proto.v1 import engine_pb2 as pb

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@asynccontextmanager
async def pages(port: int) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, str]]]]:
    """Ask a process for a page: status and text."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def get(page: str) -> tuple[int, str]:
            async with session.get(f"/{page}") as answer:
                return answer.status, await answer.text()

        yield get


async def serving(link: Link, model: Path) -> None:
    """Until the model, as `m`, is in the host cache."""
    link.send(pb.Catalog(models=[spec("m", model)]))
    await link.cached("m")


async def loading(link: Link, model: Path) -> int:
    """The command that makes it resident."""
    await serving(link, model)
    return link.send(pb.Load(model="m", slabs=32))


async def test_a_process_serves_ends_within_three_seconds_of_sigterm_and_removes_its_segment(scheduler: Rig) -> None:
    launched = time.monotonic()
    async with outside(config(scheduler.folder, drain_s=0), scheduler.folder) as process:
        link = await scheduler.link("a")
        started_in = time.monotonic() - launched  # more than three seconds where the machine does much else
        load = await loading(link, scheduler.models["llama"])
        link.send(scheduler.open("r", "m", PROMPT, max_tokens=200))
        parts = [pb.PrefillPart(seq=seq("r"), tokens=8)]
        link.send(pb.Turn(model="m", prefill=parts, decode=[seq("r")], steps=200, slabs=16), after=[load])
        await scheduler.received_tokens("r", 2)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(max(3, started_in)):
            assert await process.wait() == 0
    assert not list((scheduler.folder / "segments").glob("*.kv"))


async def test_a_process_asked_to_drain_reports_it_and_finishes_its_sequences(scheduler: Rig) -> None:
    port = free_port()
    settings = config(scheduler.folder, drain_s=60, metrics_listen=f"127.0.0.1:{port}")
    del settings["instance"], settings["node"]
    async with outside(settings, scheduler.folder, "--instance", "a", "--node", "n") as process, pages(port) as get:
        link = await scheduler.link("a")
        assert link.hello.node == "n"
        assert (await get("healthz"))[0] == 200
        assert (await get("readyz"))[0] == 200
        load = await loading(link, scheduler.models["llama"])
        link.send(scheduler.open("r", "m", PROMPT, max_tokens=100))
        parts = [pb.PrefillPart(seq=seq("r"), tokens=8)]
        await link.done(link.send(pb.Turn(model="m", prefill=parts, slabs=8), after=[load]))
        text = (await get("metrics"))[1]
        assert "aegaeon_sidecar_sequences 1.0" in text
        assert 'aegaeon_sidecar_models{phase="cached"} 1.0' in text
        beside = next(line for line in text.splitlines() if line.startswith("aegaeon_sidecar_outside_slabs_bytes "))
        assert 50 << 20 < float(beside.split()[1]) < 4 << 30
        process.send_signal(signal.SIGTERM)
        await link.until(lambda: link.draining)
        assert (await get("readyz"))[0] == 503
        link.send(pb.Turn(model="m", decode=[seq("r")], steps=100, slabs=16))
        assert len(await scheduler.received_tokens("r", 100)) == 100
        async with asyncio.timeout(60):
            assert await process.wait() == 0


async def test_a_second_signal_ends_a_drain_at_once(scheduler: Rig) -> None:
    async with outside(config(scheduler.folder, drain_s=300), scheduler.folder) as process:
        link = await scheduler.link("a")
        await serving(link, scheduler.models["llama"])
        link.send(scheduler.open("r", "m", PROMPT, max_tokens=100))
        process.send_signal(signal.SIGTERM)
        await link.until(lambda: link.draining)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0


@pytest.mark.parametrize("ranks", [1, 2])
async def test_one_process_continues_with_the_kv_cache_that_another_computed(scheduler: Rig, ranks: int) -> None:
    async with (
        outside(config(scheduler.folder, "p", ranks=ranks), scheduler.folder),
        outside(config(scheduler.folder, "d", ranks=ranks), scheduler.folder),
    ):
        p, d = await scheduler.link("p"), await scheduler.link("d")
        for link in (p, d):
            link.send(pb.Catalog(models=[spec("m", scheduler.models["llama"])]))
        for link in (p, d):
            await link.until(lambda link=link: "m" in link.models)
            await link.cached("m")
            link.send(pb.Load(model="m", slabs=32))
        parts = [pb.PrefillPart(seq=seq(name), tokens=8) for name in ("moved", "stayed")]
        for name in ("moved", "stayed"):
            p.send(scheduler.open(name, "m", PROMPT, max_tokens=40))
        first = p.send(pb.Turn(model="m", prefill=parts, decode=[seq("stayed")], steps=40, slabs=8))
        out = (await p.done(p.send(pb.SwapOut(seq=seq("moved"), epoch=1), after=[first]))).done
        d.send(scheduler.open("moved", "m", PROMPT, max_tokens=40))
        adopt = d.send(pb.Adopt(seq=seq("moved"), epoch=1, handle=out.handle, slabs=8))
        await d.done(d.send(pb.Turn(model="m", decode=[seq("moved")], steps=40, slabs=8), after=[adopt]))
        p.send(pb.Close(seq=seq("moved"), epoch=1))
        assert await scheduler.received_tokens("moved", 40) == await scheduler.received_tokens("stayed", 40)


async def test_the_next_process_removes_the_segments_of_all_ranks_of_a_killed_one(scheduler: Rig) -> None:
    for life in (1, 2):
        async with outside(config(scheduler.folder, ranks=2), scheduler.folder) as process:
            link = await scheduler.link("a", attachments=life)
            files = {path.name for path in (scheduler.folder / "segments").glob("*.kv")}
            assert files == {f"a@{link.hello.incarnation}.kv", f"a@{link.hello.incarnation}.1.kv"}
            process.kill()
            await process.wait()


async def test_a_wrong_configuration_ends_the_process_with_one_sentence(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with outside(config(folder, surprise=1), folder) as process, asyncio.timeout(START_S):
        assert await process.wait() == 2
    error = capfd.readouterr().err
    assert "surprise" in error
    assert "Traceback" not in error


async def test_sigterm_during_the_import_of_torch_ends_the_process_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = folder / "begun"
    slow = folder / "slow" / "torch.py"
    slow.parent.mkdir()
    # In torch's place: says that it is being loaded, and takes longer over it than the test has.
    slow.write_text(f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(slow.parent))
    async with outside(config(folder), folder) as process, asyncio.timeout(START_S):
        while not begun.exists():  # noqa: ASYNC110 - a file of another process: nothing announces it
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
