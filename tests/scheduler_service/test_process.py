"""The real process with the real core: started, used, measured, stopped."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from aegaeon_cli.demo.stack import free_port
from aegaeon_proto.v1 import engine_pb2, model_pb2
from aegaeon_scheduler.core.log import replay

PATIENCE_S = 60


async def launch(config: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aegaeon_scheduler", "--config", str(config), stderr=asyncio.subprocess.PIPE
    )


@asynccontextmanager
async def running(config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that serves."""
    process = await launch(config)
    assert process.stderr
    try:
        async with asyncio.timeout(PATIENCE_S):
            while b"serving" not in (line := await process.stderr.readline()):
                assert line, "it ended before it served"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def failed_start(config: Path) -> str:
    process = await launch(config)
    async with asyncio.timeout(PATIENCE_S):
        _, complaint = await process.communicate()
    assert process.returncode == 2
    return complaint.decode()


def cached(model: str) -> model_pb2.ModelState:
    footprint = model_pb2.Footprint(
        weight_bytes=1 << 20, weight_slabs=1, kv_shape="s", kv_block_bytes=4096, kv_block_tokens=16, max_model_len=256
    )
    return model_pb2.ModelState(model=model, phase=model_pb2.MODEL_PHASE_CACHED, footprint=footprint)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_within_two_seconds_with_streams_open(
    configured: Any, dial: Any, folder: Path, signum: int
) -> None:
    launched = time.monotonic()
    async with running(configured()) as process, dial(f"unix:{folder}/s.sock") as stack:
        sidecar, gateway = await stack.sidecar(), await stack.gateway()
        began = time.monotonic()
        process.send_signal(signum)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
        started_in = began - launched  # longer where other processes run
        assert time.monotonic() - began < max(2, 2 * started_in)
        for client in (sidecar, gateway):
            assert (await client.ended())[0] is grpc.StatusCode.UNAVAILABLE


async def first_turn(sidecar: Any) -> tuple[engine_pb2.Open, engine_pb2.Command]:
    """Does what comes before it: loads are done at once, the last sequence that was opened is returned beside it."""
    opened = None
    while True:
        command = await sidecar.next()
        match command.WhichOneof("body"):
            case "load":
                memory = engine_pb2.Memory(slabs_free=63, host_slabs_free=64)
                await sidecar.report(done=engine_pb2.Done(id=command.id, seconds=0.1, memory=memory))
            case "open":
                opened = command.open
            case "turn":
                assert opened is not None
                return opened, command


def last_step(turn: int) -> engine_pb2.StepDone:
    """Three tokens of prompt, one of output, and it stops."""
    done = engine_pb2.SeqProgress(
        seq=model_pb2.SeqId(request="r1"), epoch=1, output_tokens=1, finish=model_pb2.FINISH_REASON_STOP
    )
    memory = engine_pb2.Memory(slabs_free=62, host_slabs_free=64)
    return engine_pb2.StepDone(turn=turn, progress=[done], prefill_tokens=3, prefill_s=0.01, memory=memory, end=True)


async def page_of(port: int, page: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{page}") as answer:
        return answer.status, await answer.text()


async def test_a_request_runs_through_the_real_core(configured: Any, dial: Any, folder: Path) -> None:
    port = free_port()
    async with (
        running(configured(metrics_listen=f"127.0.0.1:{port}")),
        dial(f"unix:{folder}/s.sock") as stack,
    ):
        sidecar = await stack.sidecar(models=[cached("tiny-a")])
        gateway = await stack.gateway()
        await gateway.submit()
        assert (await gateway.next("accepted")).request == "r1"
        opened, turn = await first_turn(sidecar)
        assert (list(opened.prompt), opened.reply_to) == ([11, 12, 13], "unix:/run/gw.sock")
        assert [(p.seq.request, p.tokens) for p in turn.turn.prefill] == [("r1", 3)]
        (status,) = [picture async for picture in stack.status()]
        assert [(i.instance, i.alive, i.running) for i in status.instances] == [("decode-0", True, "tiny-a")]
        assert (status.instances[0].turn_s > 0.0, status.instances[0].first_steps) == (True, True)
        assert not status.models[0].HasField("worked_s")
        assert [(s.seq.request, s.instance) for s in status.sequences] == [("r1", "decode-0")]
        await sidecar.report(step_done=last_step(turn.id))
        async for picture in stack.status(interval_s=0.05):
            if not picture.sequences:
                break
        assert {m.model: (m.requests, m.output_tokens) for m in picture.models}["tiny-a"] == (1, 1)
        (model,) = (m for m in picture.models if m.model == "tiny-a")
        assert model.HasField("worked_s")
        assert abs(time.time() - model.answered_at - model.worked_s) < PATIENCE_S
        for page in ("healthz", "readyz"):
            assert (await page_of(port, page))[0] == 200
        _, text = await page_of(port, "metrics")
        for line in (
            'aegaeon_scheduler_events_total{kind="Submitted"} 1.0',
            'aegaeon_scheduler_decisions_total{kind="Accept"} 1.0',
            'aegaeon_scheduler_output_tokens_total{model="tiny-a"} 1.0',
            'aegaeon_scheduler_queue{model="tiny-a"} 0.0',
            'aegaeon_scheduler_loads_total{instance="decode-0"} 1.0',
            "aegaeon_scheduler_instances_up 1.0",
        ):
            assert line in text
        for name in ("event_seconds_count", "process_cpu_seconds_total"):
            assert re.search(rf"^aegaeon_scheduler_{name} \S*[1-9]", text, re.MULTILINE), name


async def test_an_unusable_configuration_is_one_sentence_and_status_2(configured: Any) -> None:
    complaint = await failed_start(configured(hold="30"))
    assert complaint.strip().endswith("config.json: hold: unknown key; remove it or correct its name")
    assert "Traceback" not in complaint


async def test_an_address_that_cannot_be_bound_is_named(configured: Any) -> None:
    complaint = await failed_start(configured(listen="unix:/nonexistent-folder/s.sock"))
    assert "listen: cannot serve on unix:/nonexistent-folder/s.sock" in complaint


async def test_a_metrics_port_that_is_taken_is_named(configured: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"metrics_listen: cannot serve on {address}" in await failed_start(configured(metrics_listen=address))


async def test_a_socket_left_behind_by_a_killed_predecessor_is_taken_over(
    configured: Any, dial: Any, folder: Path
) -> None:
    config = configured()
    async with running(config) as process:
        process.kill()
        await process.wait()
    async with running(config), dial(f"unix:{folder}/s.sock") as stack:
        await stack.sidecar()


async def test_every_run_leaves_a_log_that_replays_to_the_same_commands(
    configured: Any, dial: Any, folder: Path
) -> None:
    log = folder / "events.log"
    for _ in range(2):
        async with running(configured(record=str(log))) as process, dial(f"unix:{folder}/s.sock") as stack:
            sidecar = await stack.sidecar(models=[cached("tiny-a")])
            gateway = await stack.gateway()
            await gateway.submit()
            await gateway.next("accepted")
            await sidecar.next()
            process.terminate()
            await process.wait()
    for path in (log, folder / "events.log.1"):
        assert "11,12,13" not in path.read_text()
        result = replay(path)
        assert (result.same, result.events >= 4, result.commands >= 3) == (True, True, True)


async def test_a_log_that_cannot_be_written_is_named(configured: Any) -> None:
    complaint = await failed_start(configured(record="/nonexistent-folder/events.log"))
    assert "record: /nonexistent-folder/events.log cannot be written: No such file" in complaint
