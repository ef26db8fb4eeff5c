"""The stream to the scheduler, where it breaks."""

from __future__ import annotations

import grpc
import pytest
from sidecar.rig import Rig

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import engine_pb2_grpc as rpc
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
