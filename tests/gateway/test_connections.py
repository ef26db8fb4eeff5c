"""Connections of clients that are slow, silent, many, or half closed: each is bounded, and others are unaffected."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import pytest
from gateway.conftest import TEXT

from aegaeon_gateway.http.connection import MAX_AHEAD, Connection

BODY = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 200}).encode()
HANG_S = 60


def post(body: bytes = BODY, *fields: str, path: str = "/v1/completions", length: int | None = None) -> bytes:
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body) if length is None else length}",
        *fields,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def answer(data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the last answer in what was received."""
    head, _, body = data.rpartition(b"\r\n\r\n")
    return int(re.findall(rb"HTTP/\d\.\d (\d+) ", head)[-1]), json.loads(body)


def limited(**limits: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("limits", [limits], indirect=True)


async def ended(pool: Any, reason: str) -> None:
    """Until the gateway has counted a connection that it ended for this reason."""
    line = f'aegaeon_gateway_connections_ended_total{{reason="{reason}"}}'
    async with asyncio.timeout(HANG_S):
        while line not in await pool.metrics():  # noqa: ASYNC110  # a counter is watched, as Prometheus does
            await asyncio.sleep(0.2)


@limited(header_s=0.2)
async def test_a_header_that_does_not_end_is_answered_408(pool: Any) -> None:
    async with asyncio.timeout(HANG_S):
        status, body = answer(await pool.raw(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"))
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    await ended(pool, "header_time")


@limited(body_s=0.2, body_bytes_per_s=1000)
async def test_a_body_that_does_not_end_is_answered_408_and_a_slow_one_that_moves_is_read(pool: Any) -> None:
    async with asyncio.timeout(HANG_S):
        status, body = answer(await pool.raw(post(BODY, length=len(BODY) + 1)))
    assert (status, body["error"]["code"]) == (408, "request_timeout")
    await ended(pool, "body_time")
    padded = BODY + b" " * 60_000  # 60 seconds at that rate
    reader, writer = await asyncio.open_connection("127.0.0.1", pool.served.port)
    writer.write(post(padded, "Connection: close")[:-10])
    await asyncio.sleep(0.5)  # longer than body_s, shorter than the rate
    writer.write(b" " * 10)
    assert answer(await reader.read())[0] == 200
    writer.close()


@limited(idle_s=0.2)
async def test_an_idle_connection_is_closed_and_one_that_waits_for_its_answer_is_not(pool: Any) -> None:
    pool.peer.serve_tokens = False
    asked = asyncio.create_task(pool.raw(post(BODY, "Connection: close")))
    await pool.peer.until(lambda: bool(pool.peer.submits))
    await pool.until_models(lambda models: "tiny" in models)
    async with asyncio.timeout(HANG_S):
        assert await pool.raw() == b""
        assert (await pool.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")).startswith(b"HTTP/1.1 200")
    assert not asked.done()
    submit = pool.peer.submits[0]
    await pool.peer.push(pool.peer.tokens_of(submit, submit.choices[0]))
    assert answer(await asked)[1]["choices"][0]["text"] == TEXT


@limited(write_s=0.3)
async def test_a_reader_that_stops_is_cancelled_and_others_continue(pool: Any) -> None:
    output = [pool.tokenizer.token_to_id("a")] * 200
    pool.peer.say = lambda submit, choice: output
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", pool.served.port))
        body = {"model": "tiny", "prompt": "hi", "max_tokens": 200, "n": 128, "stream": True, "ignore_eos": True}
        body["logprobs"] = 5  # so that it is megabytes
        pool.peer.serve_tokens = False
        await loop.sock_sendall(sock, post(json.dumps(body).encode()))
        await pool.peer.until(lambda: bool(pool.peer.submits))
        submit = pool.peer.submits[0]
        tokens = [pool.peer.tokens_of(submit, choice)[:-1] for choice in submit.choices]
        await pool.peer.push([token for step in zip(*tokens, strict=True) for token in step], size=128)
        await pool.peer.until(lambda: bool(pool.peer.cancels))
        assert pool.peer.cancels[0].request == submit.request
        await ended(pool, "slow_reader")


@limited(connections_per_address=4)
async def test_idle_connections_are_evicted_and_busy_ones_are_not(pool: Any) -> None:
    idle = [await asyncio.open_connection("127.0.0.1", pool.served.port) for _ in range(4)]
    pool.peer.serve_tokens = False
    asked = [asyncio.create_task(pool.raw(post(BODY, "Connection: close"))) for _ in range(4)]
    await pool.peer.until(lambda: len(pool.peer.submits) == 4)
    assert [await reader.read() for reader, _ in idle] == [b""] * 4, "the idle ones were closed"
    status, body = answer(await pool.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    assert (status, body["error"]["code"]) == (429, "too_many_connections")
    for submit in pool.peer.submits:
        await pool.peer.push(pool.peer.tokens_of(submit, submit.choices[0]))
    assert [answer(data)[0] for data in await asyncio.gather(*asked)] == [200] * 4
    await ended(pool, "evicted")
    await ended(pool, "too_many_of_address")
    for _, writer in idle:
        writer.close()


@limited(connections=3)
async def test_connections_with_slow_bodies_are_evicted(pool: Any) -> None:
    await pool.until_models(lambda models: "tiny" in models)
    dripping = [await asyncio.open_connection("127.0.0.1", pool.served.port) for _ in range(3)]
    for _, writer in dripping:
        writer.write(post(length=50_000))
        await asyncio.sleep(0.05)  # they came one after another
    for _ in range(3):
        assert answer(await pool.raw(post(BODY, "Connection: close")))[0] == 200
    await ended(pool, "evicted")
    for _, writer in dripping:
        writer.close()


@limited(connections=3, trusted_proxies=["127.0.0.0/8"], connections_per_address=1)
async def test_a_trusted_proxy_is_bounded_in_total_and_not_by_address(pool: Any) -> None:
    pool.peer.serve_tokens = False
    asked = [asyncio.create_task(pool.raw(post(BODY, "Connection: close"))) for _ in range(3)]
    await pool.peer.until(lambda: len(pool.peer.submits) == 3)
    status, body = answer(await pool.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))
    assert (status, body["error"]["code"]) == (503, "overloaded")
    for submit in pool.peer.submits:
        await pool.peer.push(pool.peer.tokens_of(submit, submit.choices[0]))
    await asyncio.gather(*asked)
    status, _, _ = await pool.post("/v1/completions", {"model": "none", "prompt": "x"})
    assert status == 404, "there is room again"


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """What is open stays open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_idle_connections_make_room_and_one_line_says_so(
    pool: Any, caplog: pytest.LogCaptureFixture
) -> None:
    loop, address = asyncio.get_running_loop(), ("127.0.0.1", pool.served.port)
    idle = [await asyncio.open_connection(*address) for _ in range(20)]
    clients = [socket.socket() for _ in range(8)]
    with no_descriptor_left(), caplog.at_level(logging.WARNING):
        for client in clients:
            client.setblocking(False)
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(HANG_S):
            answers = [await loop.sock_recv(client, 1 << 16) for client in clients]
    assert all(data.startswith(b"HTTP/1.1 200 ") for data in answers)
    assert ["no descriptor is left" in record.message for record in caplog.records] == [True]
    await ended(pool, "evicted")
    for client in (*clients, *(writer for _, writer in idle)):
        client.close()


@limited(requests_per_connection=2)
async def test_the_last_response_of_a_connection_closes_it(pool: Any) -> None:
    await pool.until_models(lambda models: "tiny" in models)
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    data = await pool.raw(request * 3)
    assert data.count(b"HTTP/1.1 200") == 2
    assert data.count(b"Connection: close") == 1


@limited(bodies_bytes=100_000)
async def test_of_incomplete_bodies_the_largest_is_refused_when_they_are_too_much_together(pool: Any) -> None:
    large = asyncio.create_task(pool.raw(post(length=95_000), b" " * 90_000))
    async with asyncio.timeout(HANG_S):
        await asyncio.sleep(0.3)
        assert not large.done()
        small = asyncio.create_task(pool.raw(post(length=40_000), b" " * 20_000))
        status, body = answer(await large)
        assert (status, body["error"]["code"]) == (503, "overloaded")
    await asyncio.sleep(0.2)
    assert not small.done()
    small.cancel()
    await asyncio.gather(small, return_exceptions=True)
    await ended(pool, "bodies")


async def test_a_client_that_closed_its_sending_half_gets_its_answer(pool: Any) -> None:
    pool.peer.serve_tokens = False
    whole = asyncio.create_task(pool.raw(post(), half_close=True))
    await pool.peer.until(lambda: len(pool.peer.submits) == 1)
    stream = post(json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 200, "stream": True}).encode())
    streamed = asyncio.create_task(pool.raw(stream, half_close=True))
    await pool.peer.until(lambda: len(pool.peer.submits) == 2)
    await asyncio.sleep(1.5)  # the gateway has looked at both
    for submit in pool.peer.submits:
        await pool.peer.push(pool.peer.tokens_of(submit, submit.choices[0]))
    async with asyncio.timeout(HANG_S):
        assert answer(await whole)[1]["choices"][0]["text"] == TEXT
        assert b"data: [DONE]" in await streamed


async def test_two_requests_sent_ahead_of_a_half_close_are_both_answered(pool: Any) -> None:
    async with asyncio.timeout(HANG_S):
        data = await pool.raw(post() + post(), half_close=True)
    assert data.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_closed_both_halves_cancels_its_request(pool: Any, stream: bool) -> None:
    """Also in the middle of a stream of which it has read everything, so that only a FIN is sent."""
    pool.peer.serve_tokens = False
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 200, "stream": stream}
    reader, writer = await asyncio.open_connection("127.0.0.1", pool.served.port)
    writer.write(post(json.dumps(body).encode()))
    await pool.peer.until(lambda: bool(pool.peer.submits))
    if stream:
        submit = pool.peer.submits[0]
        await pool.peer.push(pool.peer.tokens_of(submit, submit.choices[0])[:3])
        await reader.readuntil(b"}\n\n")
    writer.close()
    await pool.peer.until(lambda: bool(pool.peer.cancels))


async def test_requests_far_ahead_of_their_answers_are_read_later_and_all_answered(pool: Any) -> None:
    """More than are parsed at a time, in one piece."""
    count = 2 * MAX_AHEAD + 2048 // len(post())
    async with asyncio.timeout(HANG_S):
        data = await pool.raw(post() * count, half_close=True)
    assert data.count(b"HTTP/1.1 200 OK") == count


@limited(header_bytes=16_000)
async def test_a_header_that_is_too_large_in_all_is_refused(pool: Any) -> None:
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 7000) for number in range(3))
    status, body = answer(await pool.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\n", fields))
    assert (status, body["error"]["code"]) == (431, "header_too_large")


async def test_health_answers_during_hundreds_of_slow_connections(pool: Any) -> None:
    await pool.until_models(lambda models: "tiny" in models)
    dripping = [await asyncio.open_connection("127.0.0.1", pool.served.port) for _ in range(300)]
    for _, writer in dripping:
        writer.write(post(length=50_000))
    async with asyncio.timeout(HANG_S), aiohttp.ClientSession() as http, http.get(f"{pool.url}/health") as response:
        assert response.status == 200
    for _, writer in dripping:
        writer.close()


@limited(idle_s=0.2)
async def test_a_gateway_that_can_end_no_connections_any_more_ends(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(connection: Connection, now: float) -> None:
        raise ZeroDivisionError(f"{connection} at {now}")

    monkeypatch.setattr(Connection, "look", defect)
    _, writer = await asyncio.open_connection("127.0.0.1", pool.served.port)
    async with asyncio.timeout(HANG_S):
        first, _ = await asyncio.wait(pool.served.tasks, return_when=asyncio.FIRST_COMPLETED)
    assert isinstance(first.pop().exception(), ZeroDivisionError)
    writer.close()
