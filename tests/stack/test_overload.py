"""More requests than an engine can take: bounded waits and 503 with Retry-After, on real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from stack.launch import CONTEXT, manifests, running

from aegaeon_cli.demo.stack import Stack

HOLD_S = 0.5
PATIENCE_S = 20.0  # of the test, beyond the hold: machines are busy
MANY = 400  # long prompts at once; an engine takes many times HOLD_S for them, on a fast machine as well
SHORT = {"model": "good", "prompt": "The quick brown fox", "max_tokens": 4}
LONG = {"model": "good", "prompt": [7] * (CONTEXT - 10), "max_tokens": 2}


async def send(session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, str | None, float]:
    """Status, Retry-After and duration of a completion."""
    clock = asyncio.get_running_loop().time
    began = clock()
    async with session.post("/v1/completions", json=body) as answer:
        await answer.read()
        return answer.status, answer.headers.get("Retry-After"), clock() - began


@pytest.fixture(scope="module")
def impatient(make_model: Callable[..., Path]) -> Iterator[Stack]:
    """One engine, and requests that wait for a moment only: none is due later."""
    models = {"good": make_model("llama", max_position_embeddings=CONTEXT)}
    text = manifests(models, engines=1, hold=f"{HOLD_S:g}s").replace("ttft: 5s", f"ttft: {HOLD_S:g}s")
    with running(text) as stack:
        yield stack


async def test_overload_gives_a_bounded_wait_and_then_503_with_retry_after(impatient: Stack) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(impatient.state.url, connector=connector) as session:
        assert (await send(session, SHORT))[0] == 200
        answers = await asyncio.gather(*(send(session, LONG) for _ in range(MANY)))
        assert {status for status, _, _ in answers} == {200, 503}
        refusals = [(retry, seconds) for status, retry, seconds in answers if status == 503]
        assert all(retry is not None and int(retry) >= 1 for retry, _ in refusals)
        assert max(seconds for _, seconds in refusals) < HOLD_S + PATIENCE_S
        assert (await send(session, SHORT))[0] == 200
