"""A pool of engines that prefill and engines that decode, when nothing can take over what is prefilled: streams end in
time, nothing further is prefilled, model lists say so, and all is well when the decoder is back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from stack.launch import manifests, running
from stack.traffic import PROMPTS, stream

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import Stack
from aegaeon_cli.status import watch_status
from aegaeon_proto.v1.gateway_pb2 import PoolStatus
from aegaeon_proto.v1.model_pb2 import ModelPhase

HOLD_S, SILENCE_S, MORE_S = 2.0, 2.0, 2.0  # a stopped process is given up after SILENCE_S


@pytest.fixture(scope="module")
def stack(four_models: dict[str, Path]) -> Iterator[Stack]:
    text = manifests({"llama": four_models["llama"]}, prefill=1, decode=1, hold=f"{HOLD_S:.0f}s")
    with running(text) as up:
        yield up


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def decoder_elsewhere(stack: Stack, folder: Path) -> Iterator[None]:
    """A second decoder, on a node of its own as far as it can tell."""
    config = json.loads((Path(stack.state.folder) / "decode-0.json").read_text())
    config |= {"instance": "decode-1", "node": "elsewhere", "segments": str(folder / "segments")}
    (folder / "segments").mkdir()
    file = folder / "decode-1.json"
    file.write_text(json.dumps(config))
    process = subprocess.Popen([sys.executable, "-m", "aegaeon_sidecar", "--config", str(file)])
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(30) == 0


async def until(stack: Stack, there: Callable[[PoolStatus], bool]) -> PoolStatus:
    """The first status of which that is true."""
    async with asyncio.timeout(60):
        async for status in watch_status(stack.state.scheduler, 0.05):
            if there(status):
                return status
    raise AssertionError("the status ended")


def attached(status: PoolStatus, instance: str) -> bool:
    return any(one.instance == instance and one.alive for one in status.instances)


def prefilled_s(status: PoolStatus) -> float:
    return next(one.busy_s for one in status.instances if one.instance == "prefill-0")


async def refused_within(client: Any, seconds: float) -> openai.InternalServerError:
    began = time.monotonic()
    with pytest.raises(openai.InternalServerError) as refused:
        await client.completions.create(model="llama", prompt=PROMPTS[1], max_tokens=8)
    assert time.monotonic() - began < seconds
    assert refused.value.status_code == 503
    assert int(refused.value.response.headers["Retry-After"]) > 0
    return refused.value


async def test_a_stream_and_what_is_asked_later_end_in_time_when_the_only_decoder_is_silent(
    stack: Stack, client: Any, tmp_path: Path
) -> None:
    expected = await stream(client, "llama", PROMPTS[0])
    begun = asyncio.Event()
    long = asyncio.create_task(stream(client, "llama", PROMPTS[0], begun.set, tokens=1900))
    await begun.wait()
    with stopped(stack.pod("decode-0")):
        began = time.monotonic()
        with pytest.raises(openai.APIError, match="llama is not served: prefill-0 of node"):
            await long
        assert time.monotonic() - began < SILENCE_S + HOLD_S + MORE_S
        await until(stack, lambda status: not attached(status, "decode-0"))
        await refused_within(client, HOLD_S + MORE_S)
        with decoder_elsewhere(stack, tmp_path):
            before = await until(stack, lambda status: attached(status, "decode-1"))
            assert "no engine that can take its KV over decodes it" in before.models[0].reason
            error = await refused_within(client, HOLD_S + MORE_S)
            assert "llama is not served" in error.message
            listed = json.loads(await asyncio.to_thread(clients.page, f"{stack.state.url}/v1/models"))
            assert listed["data"][0]["aegaeon"]["phase"] == "unspecified"
            after = await until(stack, lambda status: True)
            assert prefilled_s(after) == prefilled_s(before)
    await until(stack, lambda status: status.models[0].phase == ModelPhase.MODEL_PHASE_CACHED)
    assert await stream(client, "llama", PROMPTS[0]) == expected
