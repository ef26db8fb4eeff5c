"""Attacks by how a client uses its connections: slowly, wrongly, or very many of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

from attacks.stranger import CHAT, Stranger, chat, request_head

CONNECTIONS = 200  # of one attack


async def slow_headers(one: Stranger) -> None:
    """Headers that come a field at a time and never end."""
    start = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    await one.ready()
    await one.many(CONNECTIONS, lambda _: _drip(one, start, b"X-a: b\r\n"))


async def slow_bodies(one: Stranger) -> None:
    """A body of 10 MB that is announced and comes byte by byte."""
    start = request_head(CHAT, 10 << 20, one.target.key)
    await one.ready()
    await one.many(CONNECTIONS, lambda _: _drip(one, start, b" "))


async def _drip(one: Stranger, start: bytes, more: bytes, port: int | None = None) -> None:
    """A connection that begins a request and sends a little of it at a time."""
    async with one.connection(port) as link:
        if link is None:
            return
        with contextlib.suppress(OSError):
            link[1].write(start)
            while one.going and not link[0].at_eof():
                link[1].write(more)
                await one.pause(25)
            one.answers["cut" if link[0].at_eof() else "held"] += 1


async def slow_readers(one: Stranger) -> None:
    """Streams with every option set, whose client reads no byte."""
    body = json.dumps(
        chat(one.target.shared, n=4, max_tokens=200, ignore_eos=True, stream=True, logprobs=True, top_logprobs=20)
    ).encode()
    head = request_head(CHAT, len(body), one.target.key)
    await one.ready()
    loop = asyncio.get_running_loop()
    sockets = []
    for _ in range(6):
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        link.setblocking(False)
        with contextlib.suppress(OSError):
            await loop.sock_connect(link, ("127.0.0.1", one.target.gateway))
            await loop.sock_sendall(link, head + body)
            one.answers["never read"] += 1
        sockets.append(link)
        await one.pause(10)
    await one.hold()
    for link in sockets:
        link.close()


async def header_floods(one: Stranger) -> None:
    """Headers larger and more than any server takes, and ones that are none."""
    heads = [
        request_head(CHAT, 0, one.target.key, "X-Big: " + "a" * 100_000),
        request_head(CHAT, 0, one.target.key, *(f"X-{i}: b" for i in range(20_000))),
        request_head(CHAT, 0, "k" * 7000),
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 500,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 5000,
    ]
    await one.ready()
    for head in one.cycle(heads):
        await one.raw(head, wait_s=1.0)
        await one.pause(5)


async def bad_chunks(one: Stranger) -> None:
    """Chunked bodies whose sizes lie, overflow or never end."""
    head = request_head(CHAT, None, one.target.key, "Transfer-Encoding: chunked")
    bodies = [
        b"zz\r\nabc\r\n",
        b"ffffffffffffffffffff\r\nabc",
        b"-5\r\nabc\r\n",
        b"5;" + b"x" * 50_000 + b"\r\nabcde\r\n0\r\n\r\n",
        b"1\r\na\r\n" * 20_000,
        b"5\r\nabcdeXX0\r\n\r\n",
        b"0\r\n" + b"T: x\r\n" * 20_000 + b"\r\n",
        b"7fffffff\r\n",
    ]
    await one.ready()
    for body in one.cycle(bodies):
        await one.raw(head, body, wait_s=1.0)
        await one.pause(5)


async def connection_flood(one: Stranger) -> None:
    """Connections that are opened and never used, three times as many as by any other attack; then ones that close."""

    async def idle(_: int) -> None:
        async with one.connection() as link:
            if link is not None:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(max(one.left_s, 0)):
                        await link[0].read(1)
                        one.answers["cut"] += 1

    async def flicker() -> None:
        while one.going:
            async with one.connection():
                pass
            await one.pause(0.5)

    await one.ready()
    await asyncio.gather(one.many(3 * CONNECTIONS, idle), flicker())


async def half_close(one: Stranger) -> None:
    """A request, behind which the client's side is closed at once."""
    body = json.dumps(chat(one.target.shared, max_tokens=1)).encode()  # it is about the connection, not about engines
    head = request_head(CHAT, len(body), one.target.key)
    await one.ready()
    while one.going:
        async with one.connection() as link:
            if link is not None:
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(5):
                        link[1].write(head + body)
                        link[1].write_eof()
                        got = await link[0].read()
                        one.answers["half-closed: " + ("an answer" if b'"choices"' in got else "none")] += 1
        await one.pause(10)


async def pipelining(one: Stranger) -> None:
    """A thousand requests in one write, whose answers are not read, and the same ones read."""
    batch = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    await one.ready()
    while one.going:
        await one.raw(batch, wait_s=0.5)
        await one.pause(50)


async def pages(one: Stranger) -> None:
    """Pages without a key, and unknown keys, as fast as the pace allows."""
    wrong = {"Authorization": "Bearer " + "x" * 4000}
    await one.ready()
    for path, headers in one.cycle(
        [("/metrics", None), ("/v1/models", None), ("/v1/models", wrong), ("/health", None), ("/v1/models/%00", wrong)]
    ):
        await one.get(path, headers)
        await one.pause()


async def metrics_ports(one: Stranger) -> None:
    """The pages of scheduler and engines: idle and slow connections, long request lines."""

    async def drip(number: int) -> None:
        port = one.target.pages[number % len(one.target.pages)]
        await _drip(one, b"GET /metrics HTTP/1.1\r\n", b"X-a: b\r\n", port)

    async def knock() -> None:
        for port in one.cycle(one.target.pages):
            await one.raw(b"GET /" + b"a" * 100_000 + b"\r\n\r\n", port=port, wait_s=0.5)
            await one.pause(10)

    await one.ready()
    await asyncio.gather(one.many(60, drip), knock())
