"""A model served under two names by real processes, on a device that has no room for it twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from stack.launch import CONTEXT, manifests, running

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import Stack
from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc

SLABS = 10  # of 64 KiB


async def engine_of(stack: Stack) -> gateway_pb2.InstanceStatus:
    async with plain_channel(stack.state.scheduler) as channel:
        request = gateway_pb2.StatusRequest(interval_s=0.1)
        async for status in gateway_pb2_grpc.FrontendStub(channel).Status(request):
            return status.instances[0]
    raise AssertionError("no status")


def test_both_names_are_resident_at_once_and_answer_alike(make_model: Callable[..., Path]) -> None:
    path = make_model("llama", max_position_embeddings=CONTEXT)
    size = (path / "model.safetensors").stat().st_size
    assert size > SLABS * 64 * 1024 / 2
    text = manifests({"one": path, "other": path}, engines=1, device=f"{SLABS * 64}Ki", hold="100s")
    with running(text) as stack, clients.client(stack.state.url, timeout=110) as client:
        answers = [
            client.completions.create(model=name, prompt="Once upon a time", max_tokens=20, temperature=0)
            for name in ("one", "other", "one", "other")
        ]
        engine = asyncio.run(engine_of(stack))
    assert len({answer.choices[0].text for answer in answers}) == 1
    assert set(engine.resident) == {"one", "other"}
    assert engine.loads == 2
