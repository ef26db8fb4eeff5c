"""Calls over HTTP/2 as gRPC's own client makes them, and what no client should send."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from h2.connection import H2Connection

from aegaeon_picker.health import Health
from aegaeon_picker.tls import server_context
from aegaeon_picker.transport.calls import Methods, Send
from aegaeon_picker.transport.errors import CallError, Status
from aegaeon_picker.transport.limits import Limits
from aegaeon_picker.transport.server import Server
from aegaeon_proto.channels import plain_channel

WATCH = "/grpc.health.v1.Health/Watch"
PATIENCE_S = 60
MAX_MESSAGE = Limits().message_bytes
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Echo:
    """Says every message twice; counts those that are open."""

    lasting = False
    open = 0
    closed: asyncio.Queue[None]  # of the running test

    def __init__(self, send: Send) -> None:
        self._send = send
        Echo.open += 1

    def message(self, data: bytes) -> None:
        if data == b"wrong":
            raise CallError(Status.NOT_FOUND, "no such thing: 50 %, ümlaut")
        if data == b"bug":
            raise ValueError("of the service")
        self._send(data)
        self._send(data)

    def close(self) -> None:
        Echo.open -= 1
        Echo.closed.put_nowait(None)


@pytest.fixture(autouse=True)
def every_call_is_closed() -> Iterator[None]:
    Echo.closed = asyncio.Queue()
    yield
    assert Echo.open == 0


@asynccontextmanager
async def served(methods: Methods | None = None, tls: str = "off") -> AsyncIterator[Server]:
    server = Server(methods or {"/test/Echo": Echo}, server_context(tls))
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop(0)


def echo_of(channel: grpc.aio.Channel) -> Callable[..., grpc.aio.StreamStreamCall]:
    return channel.stream_stream("/test/Echo")


def to(server: Server) -> grpc.aio.Channel:
    return plain_channel(f"127.0.0.1:{server.port}")


async def test_responses_arrive_while_the_client_still_sends() -> None:
    async with served() as server, to(server) as channel:
        call = echo_of(channel)()
        for said in (b"one", b"", b"three"):
            await call.write(said)
            assert (await call.read(), await call.read()) == (said, said)
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK


async def test_over_tls_with_the_certificate_it_made() -> None:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    trusting.set_alpn_protocols(["http/1.1", "h2"])
    async with served(tls="selfSigned") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        assert (await reader.readexactly(4))[3] == 4  # its settings
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def test_many_calls_exceed_their_flow_control_windows() -> None:
    """Messages of a megabyte there and two back, in eight calls at once, from a client that reads late."""
    said = bytes(range(256)) * 4096

    async def one(channel: grpc.aio.Channel) -> None:
        call = echo_of(channel)()
        for _ in range(2):
            await call.write(said)
        await call.done_writing()
        await asyncio.sleep(0.2)
        assert [answer async for answer in call] == [said] * 4

    async with served() as server, to(server) as channel:
        await asyncio.gather(*(one(channel) for _ in range(8)))


async def test_a_call_error_is_the_clients_status() -> None:
    async with served() as server, to(server) as channel:
        call = echo_of(channel)()
        await call.write(b"wrong")
        with pytest.raises(grpc.aio.AioRpcError, match="no such thing"):
            await call.read()
        assert (await call.code(), await call.details()) == (grpc.StatusCode.NOT_FOUND, "no such thing: 50 %, ümlaut")


@pytest.mark.parametrize(
    ("path", "message", "status"),
    [
        ("/test/Other", b"x", grpc.StatusCode.UNIMPLEMENTED),
        ("/test/Echo", b"bug", grpc.StatusCode.INTERNAL),
        ("/test/Echo", b"x" * (MAX_MESSAGE + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_refused_message_ends_its_call_alone(path: str, message: bytes, status: grpc.StatusCode) -> None:
    async with served() as server, to(server) as channel:
        other = echo_of(channel)()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(path)(message)
        assert refused.value.code() == status
        await other.write(b"still here")
        assert await other.read() == b"still here"
        other.cancel()


async def test_a_compressed_message_is_refused() -> None:
    async with served() as server, to(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="compressed messages are not supported"):
            await channel.unary_unary("/test/Echo")(b"x" * 10_000, compression=grpc.Compression.Gzip)


async def test_a_cancelled_call_and_a_lost_connection_are_closed() -> None:
    async with served() as server:
        async with to(server) as channel:
            gone, left = echo_of(channel)(), echo_of(channel)()
            for call in (gone, left):
                await call.write(b"x")
                await call.read()
            assert Echo.open == 2
            gone.cancel()
            await asyncio.wait_for(Echo.closed.get(), PATIENCE_S)
            assert Echo.open == 1
        await asyncio.wait_for(Echo.closed.get(), PATIENCE_S)


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + b"\0\0\1\4\0\0\0\0\0x", PREFACE + b"\0\0\1\0\0\0\0\0\1x"]
)
async def test_a_client_without_http2_gets_an_error_and_is_closed(garbage: bytes) -> None:
    async with served() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(garbage)
        frames = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert frames[3] == 4  # our settings came first
        writer.close()
        await writer.wait_closed()
        async with to(server) as channel:
            await channel.channel_ready()


async def test_shutdown_drains_open_calls_and_refuses_new_ones() -> None:
    async with served() as server, to(server) as channel:
        call = echo_of(channel)()
        await call.write(b"before")
        await call.read()
        stopping = asyncio.create_task(server.stop(PATIENCE_S))
        await asyncio.sleep(0.1)
        with pytest.raises(OSError, match="Connect call failed"):
            await asyncio.open_connection("127.0.0.1", server.port)
        await call.write(b"after")
        assert [await call.read() for _ in range(3)] == [b"before", b"after", b"after"]
        assert not stopping.done()
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK
        await asyncio.wait_for(stopping, PATIENCE_S)


async def test_a_call_that_outlasts_the_grace_period_is_cancelled() -> None:
    async with served() as server, to(server) as channel:
        call = echo_of(channel)()
        await call.write(b"x")
        await call.read()
        await server.stop(0.1)
        assert await call.code() == grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_disconnects_leaves_no_watcher() -> None:
    """It says so (GOAWAY) while it watches; what changes afterwards reaches the others."""
    health = Health()
    async with served(health.methods) as server:
        gone = H2Connection()
        gone.initiate_connection()
        gone.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":path", WATCH), (":authority", "x")])
        gone.send_data(1, b"\0\0\0\0\0")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(gone.data_to_send())
        async with to(server) as channel:
            watch = channel.unary_stream(WATCH)(b"")
            frames = await watch.read()
            gone.close_connection()
            writer.write(gone.data_to_send())
            await asyncio.wait_for(reader.read(), PATIENCE_S)
            health.set_ready(True)
            assert await watch.read() != frames
            watch.cancel()
        writer.close()
        await writer.wait_closed()
