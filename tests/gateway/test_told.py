"""What a client receives besides the answer: ids, where the time went, what is left of its quota."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.gateway.conftest import HI

from aegaeon_gateway.generation.timing import Timing, longest
from aegaeon_gateway.request_id import RequestIdFilter

CHAT = {"model": "tiny", "messages": [HI]}


def parts(header: str) -> dict[str, float]:
    """Server-Timing, milliseconds by name."""
    return {name: float(value) for name, value in (part.split(";dur=") for part in header.split(", "))}


async def answered(pool: Any, **more: Any) -> tuple[Any, bytes]:
    """Headers and body of a request of whose tokens its engine says what they waited for."""
    pool.peer.serve_tokens = False
    asked = asyncio.create_task(pool.http.post(f"{pool.url}/v1/chat/completions", json={**CHAT, **more}))
    await pool.peer.until(lambda: bool(pool.peer.submits))
    submit = pool.peer.submits[-1]
    tokens = pool.peer.tokens_of(submit, submit.choices[0])
    tokens[0].load_s, tokens[0].prefill_s = 0.002, 0.001
    tokens[3].stall_s = tokens[5].stall_s = 0.25
    await pool.peer.push(tokens)
    async with await asked as response:
        return response.headers, await response.read()


async def test_a_whole_answer_says_where_its_time_went(pool: Any) -> None:
    headers, _ = await answered(pool)
    found = parts(headers["Server-Timing"])
    assert list(found) == ["queue", "load", "prefill", "first", "stall", "total"]
    assert (found["load"], found["prefill"], found["stall"]) == (2.0, 1.0, 500.0)
    assert found["queue"] + found["load"] + found["prefill"] == pytest.approx(found["first"], abs=0.2)
    assert found["total"] >= found["first"] > 3


async def test_a_stream_says_so_in_its_last_comment(pool: Any) -> None:
    headers, body = await answered(pool, stream=True)
    *_, comment, done, _ = body.split(b"\n\n")
    assert "Server-Timing" not in headers
    assert done == b"data: [DONE]"
    assert comment.startswith(b": Server-Timing: ")
    assert parts(comment.removeprefix(b": Server-Timing: ").decode())["stall"] == 500.0


def test_of_choices_side_by_side_the_longest_counts() -> None:
    assert longest([Timing(1, 0, 2, 3, 0, 9), Timing(0, 1, 2, 3, 4, 5)]) == Timing(1, 1, 2, 3, 4, 9)
    assert longest([]) == Timing()


async def test_every_line_of_a_request_has_its_id(pool: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(RequestIdFilter())
    caplog.set_level(logging.INFO)
    pool.peer.lose_after = [2]
    _, _, headers = await pool.post("/v1/chat/completions", CHAT)
    ours = headers["X-Request-Id"]
    lines = [(record.getMessage(), getattr(record, "request", "")) for record in caplog.records]
    lost, answered = [one for one in lines if ours in one[1]]
    assert "lost" in lost[0]
    assert "200 after" in answered[0]
    await pool.post("/v1/chat/completions", {"model": "none"}, headers={"X-Request-Id": "mine-7"})
    assert str(getattr(caplog.records[-1], "request", "")).endswith("(client's mine-7)")
