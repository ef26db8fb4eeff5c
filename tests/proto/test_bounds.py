"""What a connection may take of a server's port before it has shown a certificate, and a peer after that."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path

from pool_certificates import mount

from aegaeon_operator.pki import Pair, issue
from aegaeon_proto.channels import connect, open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.servers import BOUNDS, HANDSHAKE_S, add_port, make_server

NOW = datetime.now(UTC)
PATIENCE_S = 60  # against what hangs
SILENT = 1000


async def until_closed(connection: socket.socket) -> float:
    """When the server ended the connection, by the loop's clock."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(connection, 1 << 12):
            pass
    except ConnectionError:
        pass
    return loop.time()


async def test_a_thousand_silent_connections_block_no_peer_and_end_at_the_handshake_timeout(
    tmp_path: Path, authority: Pair
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = mount(tmp_path / "tls", authority, issue(authority, Role.SCHEDULER, NOW))
    server, connections = make_server(), []
    port = add_port(server, "127.0.0.1:0", folder)
    await server.start()
    loop = asyncio.get_running_loop()
    try:
        began = loop.time()
        for _ in range(SILENT):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            connection.setblocking(False)
            connections.append(connection)
        async with open_channel(f"127.0.0.1:{port}", folder, Role.SCHEDULER) as channel:
            await connect(channel, PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            ends = await asyncio.gather(*map(until_closed, connections))
        assert min(ends) >= began + HANDSHAKE_S * 0.9
    finally:
        for connection in connections:
            connection.close()
        await server.stop(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_above_the_limit_are_closed(tmp_path: Path, authority: Pair) -> None:
    folder = mount(tmp_path / "tls", authority, issue(authority, Role.SCHEDULER, NOW))
    server = make_server((("grpc.max_allowed_incoming_connections", 4), ("grpc.server_handshake_timeout_ms", 600_000)))
    port = add_port(server, "127.0.0.1:0", folder)
    await server.start()
    connections = []
    try:
        for _ in range(12):
            connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            connection.setblocking(False)
            connections.append(connection)
        waiting = {asyncio.ensure_future(until_closed(one)) for one in connections}
        async with asyncio.timeout(PATIENCE_S):
            while len(waiting) > 4:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    finally:
        for connection in connections:
            connection.close()
        await server.stop(0)
    assert dict(BOUNDS)["grpc.max_allowed_incoming_connections"] == 4096


async def test_the_server_announces_its_limits_on_streams_and_headers(tmp_path: Path, authority: Pair) -> None:
    folder = mount(tmp_path / "tls", authority, issue(authority, Role.SCHEDULER, NOW))
    server = make_server()
    port = add_port(server, "127.0.0.1:0", folder)
    await server.start()
    try:
        settings = await asyncio.to_thread(settings_of, port, folder / "..data")
    finally:
        await server.stop(0)
    bounds = dict(BOUNDS)
    assert settings[0x3] == bounds["grpc.max_concurrent_streams"]
    assert settings[0x6] <= bounds["grpc.absolute_max_metadata_size"]


def settings_of(port: int, folder: Path) -> dict[int, int]:
    """SETTINGS of the server's first HTTP/2 frame (RFC 9113, 6.5)."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=Role.SCHEDULER.dns_name) as secure,
    ):
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        stream = secure.makefile("rb")
        head = stream.read(9)
        assert head[3] == 4, "the first frame is SETTINGS"
        body = stream.read(int.from_bytes(head[:3]))
    pairs = (body[at : at + 6] for at in range(0, len(body), 6))
    return {int.from_bytes(pair[:2]): int.from_bytes(pair[2:]) for pair in pairs}
