"""Streams that wait: status and headers at once, comments with the place in the queue, what comes late is an event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway.peer import Peer
from tests.gateway.conftest import HI, TEXT, Pool, StartGateway
from tests.gateway.test_requests import starting

from aegaeon_cli.demo import clients
from aegaeon_gateway.http.silence import Silence
from aegaeon_proto.v1 import gateway_pb2 as pb
from aegaeon_proto.v1 import model_pb2

CHAT = {"model": "tiny", "messages": [HI], "stream": True}
COMMENT = b": waiting for an engine\n\n"


@pytest.fixture
async def quick(peer: Peer, start_gateway: StartGateway) -> AsyncIterator[Pool]:
    """A gateway that says something after 50 ms; its peer takes requests and computes nothing."""
    async with start_gateway(keepalive_s=0.05) as pool:
        peer.serve_tokens = False
        await pool.until_loaded("tiny")
        yield pool


async def engines_leave(pool: Pool) -> None:
    pool.peer.publish([starting(pool.peer.models[0])])
    await pool.until_models(lambda models: models["tiny"].phase == model_pb2.MODEL_PHASE_UNSPECIFIED)


async def answer(peer: Peer) -> None:
    """The tokens of the request that waits."""
    await peer.until(lambda: bool(peer.submits))
    submit = peer.submits[-1]
    await peer.push(peer.tokens_of(submit, submit.choices[0]))


async def test_a_stream_that_waits_for_a_start_gets_comments_and_then_all_of_its_answer(quick: Pool) -> None:
    await engines_leave(quick)
    async with quick.http.post(f"{quick.url}/v1/chat/completions", json=CHAT) as response:
        assert response.status == 200
        for _ in range(2):
            assert await response.content.readuntil(b"\n\n") == COMMENT
        await answer(quick.peer)
        events = [line async for line in response.content if line.startswith(b"data: ")]
    assert events[-1] == b"data: [DONE]\n"
    assert b'"role":"assistant"' in events[0]


async def test_clients_skip_the_comments(quick: Pool) -> None:
    await engines_leave(quick)
    async with clients.async_client(quick.url) as client:
        stream = await client.chat.completions.create(model="tiny", messages=[HI], stream=True)  # type: ignore[list-item]  # a plain dictionary
        await answer(quick.peer)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == TEXT


async def test_an_error_after_a_comment_is_an_event_of_the_stream(quick: Pool) -> None:
    await engines_leave(quick)
    async with quick.http.post(f"{quick.url}/v1/chat/completions", json=CHAT) as response:
        assert await response.content.readuntil(b"\n\n") == COMMENT
        await quick.peer.until(lambda: bool(quick.peer.submits))
        request = quick.peer.submits[-1].request
        quick.peer.reply(rejected=pb.Rejected(request=request, code=pb.REJECT_CODE_OVERLOADED, reason="no engine came"))
        rest = await response.content.read()
    assert b"no engine came" in rest


async def test_a_stream_has_its_status_as_soon_as_the_scheduler_has_taken_it(pool: Any) -> None:
    await pool.until_loaded("tiny")
    pool.peer.serve_tokens = False
    async with asyncio.timeout(9), pool.http.post(f"{pool.url}/v1/chat/completions", json=CHAT) as response:
        assert response.status == 200  # no comment is due for 10 s
        assert response.headers["X-Request-Id"]
        await answer(pool.peer)
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_refusal_before_that_has_its_own_status(pool: Any) -> None:
    pool.peer.reject = [pb.Rejected(code=pb.REJECT_CODE_OVERLOADED, reason="full", retry_after_s=3)]
    async with pool.http.post(f"{pool.url}/v1/chat/completions", json=CHAT) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "3"


async def test_a_stream_that_no_scheduler_takes_gets_its_status_with_the_first_comment(quick: Pool) -> None:
    quick.peer.silent = True
    async with asyncio.timeout(60), quick.http.post(f"{quick.url}/v1/chat/completions", json=CHAT) as response:
        assert response.status == 200
        assert await response.content.readuntil(b"\n\n") == COMMENT


async def test_comments_say_the_place_in_the_queue(quick: Pool) -> None:
    async with quick.http.post(f"{quick.url}/v1/chat/completions", json=CHAT) as response:
        await quick.peer.until(lambda: bool(quick.peer.submits))
        place = pb.Place(request=quick.peer.submits[-1].request, place=3)
        quick.peer.reply(places=pb.Places(places=[pb.Place(request="another's", place=1), place]))
        while (comment := await response.content.readuntil(b"\n\n")) == COMMENT:
            pass
        assert comment == b": waiting for an engine, place 3 in the queue\n\n"
        await answer(quick.peer)
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_comments_say_what_engines_do_that_are_not_there_yet(quick: Pool) -> None:
    [model] = quick.peer.models
    states = [
        pb.ModelStatus(spec=model.spec, reason="2 engines are starting:\n\nimporting vLLM"),
        pb.ModelStatus(spec=model.spec, phase=model_pb2.MODEL_PHASE_FETCHING, wait=True),
        pb.ModelStatus(
            spec=model.spec, phase=model_pb2.MODEL_PHASE_FETCHING, bytes_done=9, bytes_total=20, remaining_s=7.4
        ),
    ]
    await engines_leave(quick)
    async with quick.http.post(f"{quick.url}/v1/chat/completions", json=CHAT) as response:
        for state, words in zip(
            states,
            (
                "2 engines are starting: importing vLLM",
                "the model is being prepared",
                "the model is being fetched: 45 %, 8 s left",
            ),
            strict=True,
        ):
            quick.peer.publish([state])
            async with asyncio.timeout(10):
                while await response.content.readuntil(b"\n\n") != f": waiting for an engine ({words})\n\n".encode():
                    pass
        await answer(quick.peer)
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_stalls_gets_comments(quick: Pool) -> None:
    asked = asyncio.create_task(quick.http.post(f"{quick.url}/v1/chat/completions", json=CHAT))
    await quick.peer.until(lambda: bool(quick.peer.submits))
    tokens = quick.peer.tokens_of(quick.peer.submits[-1], quick.peer.submits[-1].choices[0])
    await quick.peer.push(tokens[:8])
    async with await asked as response:
        while await response.content.readuntil(b"\n\n") != COMMENT:
            pass
        await quick.peer.push(tokens[8:])
        assert (await response.content.read()).endswith(b"data: [DONE]\n\n")


async def test_every_write_postpones_the_comment() -> None:
    woken = asyncio.Event()
    with Silence(0.01, woken.set) as silence:
        await woken.wait()
        assert silence.due
        silence.wrote()
        assert not silence.due
