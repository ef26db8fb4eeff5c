"""Attacks on the ports that are not for clients: the scheduler's, the gateway's token sink, the endpoint picker's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import grpc
from attacks.stranger import Stranger
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived
from h2.exceptions import ProtocolError
from picker.hostile import CONTINUATION, END_STREAM, HEADERS, PING, PREFACE, PROCESS, frame, grpc_message, settings

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.envoy import ext_proc_pb2 as ext_proc
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc, gateway_pb2

ADDRESS = "127.0.0.3"  # of a well-behaved client
ANSWER_S = 2.0  # of the picker, to a well-behaved client, beside an attack


async def untrusted_on_grpc(one: Stranger) -> None:
    """Garbage, TLS that is never finished, TLS without a certificate, HTTP/2 in the clear."""
    await one.ready()
    await asyncio.gather(*(_knock(one, port) for port in one.target.grpc))


async def _knock(one: Stranger, port: int) -> None:
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(64)
    openings = (os.urandom(4096), hello, PREFACE + settings() * 1000)

    async def idle(number: int) -> None:
        async with one.connection(port) as link:
            if link is not None:
                with contextlib.suppress(OSError):
                    link[1].write(openings[number % len(openings)])
                    await one.hold()

    async def often() -> None:
        for opening in one.cycle(openings):
            await one.raw(opening, port=port, wait_s=0.2)
            await one.pause(5)

    await asyncio.gather(one.many(100, idle), often(), _without_certificate(one, port))


async def _without_certificate(one: Stranger, port: int) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    while one.going:
        with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
            async with asyncio.timeout(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
                writer.write(PREFACE)
                one.answers["tls: " + ("closed" if not await reader.read(100) else "answered")] += 1
                writer.transport.abort()
        await one.pause(20)


async def admin_without_certificate(one: Stranger) -> None:
    """SetTenants and SetCatalog by anybody, in plaintext."""
    await one.ready()
    for port in one.cycle(one.target.grpc):
        async with plain_channel(f"127.0.0.1:{port}") as channel:
            admin = admin_pb2_grpc.AdminStub(channel)
            try:
                await admin.SetTenants(
                    admin_pb2.SetTenantsRequest(tenants=gateway_pb2.Tenants(open_models=[one.target.shared])), timeout=2
                )
                one.harm.append("the scheduler accepted tenants from a client without a certificate")
            except grpc.aio.AioRpcError as error:
                one.answers[error.code().name] += 1
        await one.pause(20)


class PickerClient:
    """One HTTP/2 connection to the picker, of which calls of several users are part, as Envoy's is."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, window: int = 65535) -> None:
        self.h2 = H2Connection(H2Configuration(header_encoding=None))
        self.reader, self.writer = reader, writer
        self.h2.initiate_connection()
        if window != 65535:
            self.h2.update_settings({4: window})
        self.flush()

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def open(self) -> int:
        """A call with its first message; not sent before `flush`."""
        number = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", PROCESS),
            (":authority", "a"),
            ("te", "trailers"),
        ]
        self.h2.send_headers(number, [*headers, ("content-type", "application/grpc")])
        message = ext_proc.ProcessingRequest()
        message.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/chat/completions")
        self.h2.send_data(number, grpc_message(message.SerializeToString()))
        return number

    async def answered(self, number: int, wait_s: float) -> bool:
        """Whether a message came for this call in time."""
        with contextlib.suppress(TimeoutError, OSError, ProtocolError):
            async with asyncio.timeout(wait_s):
                while data := await self.reader.read(1 << 16):
                    for event in self.h2.receive_data(data):
                        if isinstance(event, DataReceived):
                            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                            if event.stream_id == number:
                                return True
                    self.flush()
        return False


async def picker_resets(one: Stranger) -> None:
    """Calls that are reset in the very write that opens them, beside a user's on the same connection."""
    await one.ready()
    async with one.connection(one.target.picker) as link:
        if link is None:
            return
        client = PickerClient(*link)
        while one.going:
            mine = client.open()
            for _ in range(10):
                reset = client.open()
                client.h2.reset_stream(reset, 8)
            client.flush()
            if not await client.answered(mine, 10):
                one.harm.append("a call was not answered beside others that were reset")
                return
            client.h2.reset_stream(mine, 8)
            one.answers["picked"] += 1
            await one.pause(5)


async def picker_zero_window(one: Stranger) -> None:
    """150 calls whose answers may not be sent, of tiny messages with large answers; another client must be answered."""

    async def attack() -> None:
        async with one.connection(one.target.picker) as link:
            if link is None:
                return
            client = PickerClient(*link, window=0)
            piece = ext_proc.ProcessingRequest(request_headers=ext_proc.HttpHeaders()).SerializeToString()
            framed = grpc_message(piece) * 2300  # each a hundred bytes of answer
            numbers = [client.open() for _ in range(150)]
            client.flush()
            await client.answered(0, 0.3)
            while one.going and not client.reader.at_eof():
                with contextlib.suppress(ProtocolError, OSError):
                    _fill_windows(client, numbers, framed)
                await client.answered(0, 0.1)
            one.answers["cut" if client.reader.at_eof() else "held"] += 1

    await one.ready()
    await _beside(one, attack())


def _fill_windows(client: PickerClient, numbers: Iterable[int], framed: bytes) -> None:
    for number in numbers:
        if client.h2.local_flow_control_window(number) >= len(framed):
            for begin in range(0, len(framed), 16384):
                client.h2.send_data(number, framed[begin : begin + 16384])
    client.flush()


def _flood(frames: Callable[[], bytes], opening: bytes = b"") -> Callable[[Stranger], Awaitable[None]]:
    """Connections that send `opening` once and `frames` again and again, until they are closed."""

    async def attack(one: Stranger) -> None:
        async def send() -> None:
            while one.going:
                async with one.connection(one.target.picker) as link:
                    if link is None:
                        return
                    PickerClient(*link)  # sends the preface and SETTINGS
                    with contextlib.suppress(OSError):
                        link[1].write(opening)
                        while one.going and not link[1].is_closing():
                            link[1].write(frames())
                            async with asyncio.timeout(1):
                                await link[1].drain()
                            await one.pause(1)
                    one.answers["connections"] += 1
                await one.pause(10)

        await one.ready()
        await _beside(one, send())

    return attack


picker_pings = _flood(lambda: frame(PING, payload=b"12345678") * 500)
picker_settings = _flood(lambda: settings() * 500)
picker_garbage = _flood(lambda: os.urandom(2000))
picker_endless_headers = _flood(
    lambda: frame(CONTINUATION, 1, b"\0" * 16384) * 4, opening=frame(HEADERS, 1, b"", END_STREAM)
)


async def _beside(one: Stranger, attack: Coroutine[Any, Any, None]) -> None:
    """The attack, and a client that behaves at an address of its own: each of its calls must be answered."""

    async def behave() -> None:
        while one.going:
            async with one.connection(one.target.picker, ADDRESS) as link:
                if link is None:
                    one.harm.append("the picker refuses connections")
                    return
                client, began = PickerClient(*link), time.monotonic()
                number = client.open()
                client.flush()
                if not await client.answered(number, 10):
                    one.harm.append("the picker did not answer another client")
                    return
                if time.monotonic() - began > ANSWER_S:
                    one.harm.append(f"the picker took {time.monotonic() - began:.1f} s for another client")
                one.answers["picked"] += 1
            await one.pause(10)

    attacking = asyncio.create_task(attack)
    await behave()
    attacking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await attacking  # what it raised goes to the harness
