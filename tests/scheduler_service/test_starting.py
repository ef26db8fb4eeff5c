"""Engines that start say what they do: models that no engine has spoken of carry it to gateways."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from aegaeon_proto.v1 import engine_pb2, engine_pb2_grpc
from aegaeon_scheduler.service import starting


async def reason(gateway: Any, words: str) -> None:
    """Until the catalog gives this reason for its models."""
    async with asyncio.timeout(60):
        while {model.reason for model in (await gateway.next("catalog")).models} != {words}:
            pass


def announcement(instance: str) -> engine_pb2.Announcement:
    return engine_pb2.Announcement(instance=instance, doing="importing vLLM")


async def test_an_engine_that_starts_is_named_until_it_attaches_or_is_silent(
    serve: Any, brain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(brain) as stack:
        stub = engine_pb2_grpc.EngineStub(await stack.channel())
        gateway = await stack.gateway()
        for instance in ("decode-0", "decode-1"):
            await stub.Announce(announcement(instance))
        await reason(gateway, "2 engines are starting: importing vLLM")
        await stack.sidecar("decode-0")
        await reason(gateway, "an engine is starting: importing vLLM")
        monkeypatch.setattr(starting, "KEPT_S", 0.1)
        for instance in ("decode-0", "decode-1"):  # the first one's was late: it has attached
            await stub.Announce(announcement(instance))
        await reason(gateway, "")


async def test_a_device_that_an_engine_leaves_alone_is_in_the_status_until_it_attaches_or_is_silent(
    serve: Any, brain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(brain) as stack:
        stub = engine_pb2_grpc.EngineStub(await stack.channel())
        devices = [
            engine_pb2.SuspectDevice(instance=name, node="n", uuid=f"of-{name}", error="CUDA error 700", losses=2)
            for name in ("decode-0", "decode-1")
        ]

        async def suspects() -> list[engine_pb2.SuspectDevice]:
            return list((await stack.service._view.status()).suspects)

        for device in devices:
            await stub.Announce(engine_pb2.Announcement(instance=device.instance, doing="waiting", suspect=device))
        assert await suspects() == devices
        await stack.sidecar("decode-0")
        assert await suspects() == devices[1:]
        await stub.Announce(announcement("decode-1"))
        assert await suspects() == [], "it starts"
        monkeypatch.setattr(starting, "KEPT_S", 0.05)
        await stub.Announce(engine_pb2.Announcement(instance="decode-1", suspect=devices[1]))
        async with asyncio.timeout(60):
            while await suspects():  # noqa: ASYNC110  # a timer of the service is watched
                await asyncio.sleep(0.01)


async def test_a_standby_hears_nothing(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        stack.service.leadership.stand_by()
        with pytest.raises(grpc.aio.AioRpcError, match="stands by"):
            await engine_pb2_grpc.EngineStub(await stack.channel()).Announce(announcement("decode-0"))
