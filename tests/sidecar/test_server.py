"""The stream to the scheduler, where it breaks."""

from __future__ import annotations

import threading
import time

import grpc
import pytest
from sidecar.rig import Rig, config, inside, spec

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.engine.reports import Memory
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import engine_pb2_grpc as rpc
from aegaeon_sidecar.engine.state import State
from aegaeon_sidecar.rpc.server import _write


async def test_a_report_for_a_stream_that_is_over_says_why_it_broke(scheduler: Rig) -> None:
    async with plain_channel(scheduler.target) as channel:
        call = rpc.EngineStub(channel).Attach()
        await _write(call, [pb.Report(hello=pb.Hello(instance="a"))])
        await scheduler.link("a")
        await scheduler.vanish()
        await call.code()
        with pytest.raises(grpc.aio.AioRpcError) as broken:
            await _write(call, [pb.Report()])
    assert broken.value.code() is await call.code()


async def test_no_report_says_what_was_free_before_an_earlier_report(
    scheduler: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = State.memory

    def read_early(self: State) -> Memory:
        free = memory(self)
        if threading.current_thread().name.startswith("asyncio"):  # a heartbeat's, which is not scheduled for a while
            time.sleep(0.03)
        return free

    monkeypatch.setattr(State, "memory", read_early)
    async with inside(config(scheduler.folder, heartbeat_s=0.02)):
        link = await scheduler.cached([spec("m", scheduler.models["llama"])])
        for command in (pb.Load(model="m", slabs=64), pb.Unload(model="m")) * 3:
            report = await link.done(link.send(command))
            for beat in range(link.heartbeats + 1, link.heartbeats + 3):
                await link.until(lambda beat=beat: link.heartbeats >= beat)
                assert link.memory.slabs_free == report.done.memory.slabs_free


async def test_a_heartbeat_that_repeats_a_report_is_left_out(scheduler: Rig) -> None:
    async with inside(config(scheduler.folder, heartbeat_s=60.0)) as engine:
        link = await scheduler.cached([spec("m", scheduler.models["llama"])])
        engine.heartbeat()  # Hello alone has said what is free
        await link.until(lambda: link.heartbeats == 1)
        await link.done(link.send(pb.Load(model="m", slabs=64)))
        engine.heartbeat()  # the report of the load said the same
        await link.done(link.send(pb.Unload(model="m")))
        assert link.heartbeats == 1
