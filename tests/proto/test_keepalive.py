"""A peer that vanished silently is detected: pings and TCP_USER_TIMEOUT on every connection of a pool."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import pytest

from aegaeon_proto.channels import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S, connect, open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.servers import BOUNDS, add_port, make_server

TCP_USER_TIMEOUT = 18  # the socket module of macOS does not know it


def user_timeouts(port: int) -> list[int]:
    """TCP_USER_TIMEOUT in milliseconds of both ends of this process' connections to a port."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        if not file.is_socket():
            continue
        with suppress(OSError), socket.socket(fileno=os.dup(int(file.name))) as one:  # a listener has no peer
            if one.family in (socket.AF_INET, socket.AF_INET6) and port in (one.getpeername()[1], one.getsockname()[1]):
                found.append(one.getsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT))
    return found


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[int, grpc.aio.Channel]]:
    """The port of a server, and a channel that has connected to it."""
    server = make_server()
    port = add_port(server, "127.0.0.1:0", None)
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}", None, Role.SCHEDULER) as channel:
            await connect(channel, 60)
            yield port, channel
    finally:
        await server.stop(0)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux' /proc")
async def test_both_ends_close_a_connection_whose_peer_acknowledges_nothing() -> None:
    async with connected() as (port, _):
        by_server = dict(BOUNDS)["grpc.keepalive_timeout_ms"]
        assert sorted(user_timeouts(port)) == sorted([KEEPALIVE_TIMEOUT_S * 1000, by_server])


def test_a_server_allows_the_pings_that_clients_send() -> None:
    assert dict(BOUNDS)["grpc.http2.min_ping_interval_without_data_ms"] < KEEPALIVE_S * 1000


async def test_a_connection_without_a_call_is_kept() -> None:
    """As of an operator between two looks: a server that takes its pings for too many closes it, on a call as well."""
    async with connected() as (_, channel):
        assert channel.get_state() is grpc.ChannelConnectivity.READY
        changes = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.READY))
        await asyncio.wait([changes], timeout=6 * KEEPALIVE_S)  # the fourth ping would be one too many
        assert not changes.done()
        changes.cancel()
