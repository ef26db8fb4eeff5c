"""Responses that are generated in the background: polled, cancelled, deleted, and what becomes of them otherwise."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest
from gateway.conftest import TEXT, StartGateway
from gateway.test_responses import found
from gateway.test_tools import client_of

from aegaeon_gateway.conversations import Kept
from aegaeon_gateway.http import background


async def begun(client: openai.AsyncOpenAI, **more: Any) -> Any:
    response = await client.responses.create(model="tiny", input="hi", background=True, **more)
    assert (response.status, response.background, response.output, response.usage) == ("in_progress", True, [], None)
    return response


async def over(client: openai.AsyncOpenAI, id_: str) -> Any:
    """Polls until it is."""
    for _ in range(1000):
        if (response := await client.responses.retrieve(id_)).status != "in_progress":
            return response
        await asyncio.sleep(0.02)
    raise AssertionError("it does not end")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it is not so")


async def test_a_response_is_generated_while_its_client_polls(pool: Any) -> None:
    async with client_of(pool) as client:
        first = await over(client, (await begun(client, metadata={"a": "b"})).id)
        assert (first.status, first.output_text, first.metadata) == ("completed", TEXT, {"a": "b"})
        assert first.usage.output_tokens > 10
        second = await client.responses.create(model="tiny", input="And?", previous_response_id=first.id)
        assert second.background is False
        with pytest.raises(openai.BadRequestError, match="background can be cancelled"):
            await client.responses.cancel(second.id)
        assert (await client.responses.cancel(first.id)).status == "completed"
    assert 'outcome="ok"} 2.0' in await pool.metrics()


async def test_one_that_is_cancelled_or_deleted_ends_at_its_engine(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LOOK_S", 0.05)
    pool.peer.serve_tokens = False
    async with client_of(pool) as client:
        one, other = await begun(client), await begun(client)
        await until(lambda: len(pool.peer.submits) == 2)
        with pytest.raises(openai.BadRequestError, match="not complete"):
            await client.responses.create(model="tiny", input="And?", previous_response_id=one.id)
        assert (await client.responses.cancel(one.id)).status == "cancelled"
        await client.responses.delete(other.id)
        await until(lambda: not len(pool.served.open))
        assert (await client.responses.retrieve(one.id)).status == "cancelled"
        assert (await found(pool, other.id))[0] == 404
    assert {cancel.request for cancel in pool.peer.cancels} == {one.id, other.id}


async def test_one_that_cannot_go_on_has_failed_and_says_why(pool: Any) -> None:
    pool.peer.lose_after = [3, *[0] * 9]
    async with client_of(pool) as client:
        response = await over(client, (await begun(client)).id)
        asked = await client.responses.input_items.list(response.id)
    assert (response.status, "lost" in response.error.message) == ("failed", True)
    assert response.output, "what it had said"
    assert [item.content[0].text for item in asked.data] == ["hi"]


async def test_a_graceful_shutdown_waits_for_it_and_then_it_has_failed(
    peer: Any, start_gateway: StartGateway, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    peer.serve_tokens = False
    async with start_gateway(drain_s=0.2, access_log=True) as pool, client_of(pool) as client:
        await begun(client)
        await until(lambda: len(peer.submits) == 1)
    pool.served.intake.check()
    assert len(pool.served.open) == 0
    asked, behind = map(json.loads, capsysbinary.readouterr().out.splitlines())
    assert (asked["request_id"], asked["status"]) == (behind["request_id"], 200)
    assert (behind["endpoint"], behind["outcome"]) == ("background /v1/responses", "cancelled")


async def test_what_goes_with_no_background_is_refused_by_name(pool: Any) -> None:
    for more, param in (({"stream": True}, "stream"), ({"store": False}, "store")):
        body = {"model": "tiny", "input": "hi", "background": True, **more}
        status, answer, _ = await pool.post("/v1/responses", body)
        assert (status, answer["error"]["param"]) == (400, param)
    assert (await found(pool, "resp_x/cancel", "POST"))[0] == 404
    assert (await found(pool, "resp_x?stream=true"))[0] == 400


def test_a_beat_counts_as_dead_when_it_was_seen_unchanged_for_a_minute_on_ones_own_clock() -> None:
    """Whatever it says: it is of another machine's clock, which may be days away."""
    now = [0.0]
    sights = background.Sights(lambda: now[0])
    assert not sights.is_dead(("red", "1"), beat=1e9)
    now[0] = background.DEAD_S
    assert not sights.is_dead(("red", "1"), beat=1e9)
    assert not sights.is_dead(("red", "2"), beat=1e9)
    now[0] += 1
    assert sights.is_dead(("red", "1"), beat=1e9)
    assert not sights.is_dead(("red", "1"), beat=1e9 - 100), "a sign of life, from a clock that was set back"
    assert not sights.is_dead(("red", "2"), beat=1e9)


async def test_a_gateway_whose_clock_differs_by_days_is_not_gone(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It generates on; this one only reads."""
    monkeypatch.setattr(background, "DEAD_S", 0.5)
    kept = pool.served.conversations
    for days in (-3, 3):
        for beat in range(8):
            response = b'{"id":"resp_1","status":"in_progress","error":null,"background":true}'
            await kept.put("", "resp_1", Kept(response, b"[]", beat=time.time() + days * 86_400 + beat))
            assert (await found(pool, "resp_1"))[1]["status"] == "in_progress"
            await asyncio.sleep(0.1)


async def test_a_response_whose_gateway_is_gone_fails_for_good(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a poller received is written down: a gateway that comes back finds it over."""
    monkeypatch.setattr(background, "DEAD_S", 0.1)
    kept = pool.served.conversations
    begun_ = Kept(
        b'{"id":"resp_1","status":"in_progress","error":null,"background":true}', b"[]", beat=time.time() + 9e6
    )
    await kept.put("", "resp_1", begun_)
    assert (await found(pool, "resp_1"))[1]["status"] == "in_progress"
    await asyncio.sleep(0.2)
    late = (await found(pool, "resp_1"))[1]
    assert (late["status"], late["error"]["code"]) == ("failed", "server_error")
    assert not await kept.replace("", "resp_1", begun_)
    assert (await found(pool, "resp_1"))[1] == late
