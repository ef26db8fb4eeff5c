"""Chats of a known length against a stack, and what must be left of them in the end: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aegaeon_cli.demo.stack import Stack
from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc

TOKENS = 200  # of an answer: kills and cuts come within its first ones, while all streams run
PROMPTS = ("The quick brown fox", "Tokens are scheduled one by one", "def step(batch):")


async def stream(
    client: Any, model: str, prompt: str, on_token: Callable[[], None] = lambda: None, tokens: int = TOKENS
) -> str:
    answer = await client.completions.create(
        model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    pieces = []
    async for chunk in answer:
        pieces.append(chunk.choices[0].text)
        on_token()
    assert chunk.choices[0].finish_reason == "length"
    return "".join(pieces)


async def until_empty(stack: Stack, timeout_s: float = 20) -> None:
    """No sequence is left, and the memory that is not weights is free. A killed scheduler may restart meanwhile."""
    left = "no status"
    try:
        async with asyncio.timeout(timeout_s), plain_channel(stack.state.scheduler) as channel:
            request = gateway_pb2.StatusRequest(interval_s=0.1)
            call = gateway_pb2_grpc.FrontendStub(channel).Status(request, wait_for_ready=True)
            async for status in call:
                if not (left := occupied(status)):
                    return
    except TimeoutError:
        raise AssertionError(f"still in use after {timeout_s} s: {left}") from None


def occupied(status: gateway_pb2.PoolStatus) -> str:
    """What is still in use, in words; empty when nothing is."""
    used = [
        f"{i.instance}: {shape.used_blocks} blocks of {shape.kv_shape}"
        for i in status.instances
        for shape in (*i.memory.shapes, *i.memory.host_shapes)
        if shape.used_blocks
    ]
    down = [f"{i.instance} is down" for i in status.instances if not i.alive]
    return "; ".join([*(f"{s.seq.request} is {s.state}" for s in status.sequences), *used, *down])
