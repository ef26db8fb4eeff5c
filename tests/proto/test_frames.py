"""Connections of frames: who may make one, how it is bounded, and what is said when it cannot be made."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_certificates import mount, named

from aegaeon_operator.pki import Pair, issue, make_authority
from aegaeon_proto import frame_server
from aegaeon_proto.certificates import TlsError
from aegaeon_proto.frame_server import Connection, FrameServer
from aegaeon_proto.frames import PREFACE, FrameError, Frames, dial, frame, read_frame, why_closed
from aegaeon_proto.roles import Role
from aegaeon_proto.v1.gateway_pb2 import Token, TokenAck, TokenBatch

NOW = datetime.now(UTC)
MOST = 1000


@dataclass
class Echo:
    """Acknowledges every batch; counts those at an end."""

    connection: Connection
    received_numbers: list[int] = field(default_factory=list)
    ends: int = 0

    def received(self, data: bytes) -> None:
        number = TokenBatch.FromString(data).number
        self.received_numbers.append(number)
        self.connection.send(TokenAck(number=number))

    def ended(self) -> None:
        self.ends += 1


@dataclass
class Serving:
    target: str
    sessions: list[Echo]


@asynccontextmanager
async def serving(tls: Path | None, target: str = "127.0.0.1:0") -> AsyncIterator[Serving]:
    sessions: list[Echo] = []

    def session(connection: Connection) -> Echo:
        sessions.append(Echo(connection))
        return sessions[-1]

    server = FrameServer("TokenSink", Role.ENGINE, session, MOST)
    port = await server.start(target, tls)
    try:
        yield Serving(f"127.0.0.1:{port}" if port else target, sessions)
    finally:
        server.stop()


async def acknowledged(target: str, tls: Path | None, *numbers: int) -> list[int]:
    reader, writer = await dial(target, tls, Role.GATEWAY)
    try:
        for number in numbers:
            writer.write(frame(TokenBatch(number=number)))
        return [(await read_frame(reader, TokenAck)).number for _ in numbers]
    finally:
        writer.close()


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_frames_are_found_however_they_arrive(size: int) -> None:
    batches = [TokenBatch(number=number, tokens=[Token(token=9)] * (number % 7)) for number in range(50)]
    sent = b"".join(map(frame, batches))
    frames = Frames(MOST)
    found = [one for at in range(0, len(sent), size) for one in frames.of(sent[at : at + size])]
    assert [TokenBatch.FromString(one) for one in found] == batches


@given(st.lists(st.binary(max_size=40)))
def test_any_bytes_are_frames_or_an_error_and_pieces_do_not_matter(pieces: list[bytes]) -> None:
    def frames_of(pieces: list[bytes]) -> tuple[list[bytes], bool]:
        frames, found = Frames(100), []
        try:
            for piece in pieces:
                found += list(frames.of(piece))
        except FrameError:
            return found, True
        return found, False

    found, failed = frames_of(pieces)
    assert all(len(one) <= 100 for one in found)
    whole, whole_failed = frames_of([b"".join(pieces)])
    assert (whole_failed, whole) == (failed, found)


def test_a_frame_that_is_too_long_is_refused_before_it_is_kept() -> None:
    with pytest.raises(FrameError, match="a frame of 1001 bytes, 1000 are allowed"):
        list(Frames(MOST).of((MOST + 1).to_bytes(4, "little")))


@pytest.mark.parametrize("role", Role)
async def test_only_engines_are_served_and_others_are_logged(
    role: Role, folders: dict[Role, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(folders[Role.GATEWAY]) as one:
        if role is Role.ENGINE:
            assert await acknowledged(one.target, folders[role], 1, 2, 3) == [1, 2, 3]
            return
        with pytest.raises((EOFError, OSError)):
            await acknowledged(one.target, folders[role], 1)
        assert not one.sessions
    assert f"a certificate of role {role} may not call TokenSink, which is for: engine" in caplog.text
    assert "audit: refused ('127.0.0.1', " in caplog.text


async def test_a_certificate_without_a_role_is_refused(
    tmp_path: Path, authority: Pair, folders: dict[Role, Path], caplog: pytest.LogCaptureFixture
) -> None:
    both = named(authority, NOW, "engine.aegaeon.internal", "gateway.aegaeon.internal")
    async with serving(folders[Role.GATEWAY]) as one:
        with pytest.raises((EOFError, OSError)):
            await acknowledged(one.target, mount(tmp_path / "both", authority, both), 1)
        assert not one.sessions
    assert "a certificate without a role of the pool may not call TokenSink" in caplog.text


async def test_a_gateway_of_another_role_or_pool_is_not_dialled(tmp_path: Path, folders: dict[Role, Path]) -> None:
    blue = make_authority("blue", NOW)
    other = mount(tmp_path / "blue", blue, issue(blue, Role.GATEWAY, NOW))
    async with serving(folders[Role.SCHEDULER]) as wrong, serving(other) as foreign:
        with pytest.raises(ssl.SSLCertVerificationError) as error:
            await dial(wrong.target, folders[Role.ENGINE], Role.GATEWAY)
        assert "belongs to another role" in why_closed(error.value, folders[Role.ENGINE])
        with pytest.raises(ssl.SSLCertVerificationError) as error:
            await dial(foreign.target, folders[Role.ENGINE], Role.GATEWAY)
        assert "its certificate is not one of this pool" in why_closed(error.value, folders[Role.ENGINE])


async def test_an_engine_of_another_pool_an_old_certificate_and_plaintext_are_refused(
    tmp_path: Path, authority: Pair, folders: dict[Role, Path], caplog: pytest.LogCaptureFixture
) -> None:
    blue = make_authority("blue", NOW)
    foreign = mount(tmp_path / "blue", blue, issue(blue, Role.ENGINE, NOW))
    trusting = mount(tmp_path / "trusting", authority, issue(blue, Role.ENGINE, NOW))  # of red, which it is not of
    expired = mount(tmp_path / "old", authority, issue(authority, Role.ENGINE, NOW - timedelta(days=365)))
    async with serving(folders[Role.GATEWAY]) as one:
        for tls in (foreign, trusting, expired, None):
            with pytest.raises((EOFError, OSError)):
                await acknowledged(one.target, tls, 1)
        assert not one.sessions
        assert caplog.text.count("no TLS: ") == 4
        assert await acknowledged(one.target, folders[Role.ENGINE], 1) == [1]


async def test_certificates_are_read_again_for_every_connection(
    tmp_path: Path, authority: Pair, folders: dict[Role, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    blue = make_authority("blue", NOW)
    engine = mount(tmp_path / "new-engine", blue, issue(blue, Role.ENGINE, NOW))
    gateway = folders[Role.GATEWAY]
    async with serving(gateway) as one:
        reader, writer = await dial(one.target, folders[Role.ENGINE], Role.GATEWAY)
        mount(gateway, blue, issue(blue, Role.GATEWAY, NOW))
        assert await acknowledged(one.target, engine, 1) == [1]
        with pytest.raises((EOFError, OSError)):
            await acknowledged(one.target, folders[Role.ENGINE], 1)
        writer.write(frame(TokenBatch(number=5)))  # what is open goes on
        assert (await read_frame(reader, TokenAck)).number == 5
        (gateway / "..data").unlink()
        assert await acknowledged(one.target, engine, 1) == [1]
        writer.close()
    assert f"certificates of {gateway} were renewed" in caplog.text
    assert "certificates stay as they were" in caplog.text


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", PREFACE[:-1] + b"\0", PREFACE + b"\xff" * 4, PREFACE + b"\x04\0\0\0\xff\xff\xff\xff"],
)
async def test_what_is_no_frame_ends_its_connection_and_no_other(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(None) as one:
        reader, writer = await asyncio.open_connection(*one.target.split(":"))
        writer.write(sent)
        async with asyncio.timeout(30):
            with suppress(ConnectionError):
                assert not await reader.read()
        assert "audit: refused" in caplog.text
        assert await acknowledged(one.target, None, 1) == [1]
        assert sum(session.ends for session in one.sessions) == len(one.sessions) - 1
        writer.close()


async def test_silent_connections_and_those_above_the_limit_are_ended(
    folders: dict[Role, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_server, "HANDSHAKE_S", 0.3)
    monkeypatch.setattr(frame_server, "MOST_CONNECTIONS", 4)
    loop = asyncio.get_running_loop()
    async with serving(folders[Role.GATEWAY]) as one:
        began = loop.time()
        clients = [await asyncio.open_connection(*one.target.split(":")) for _ in range(12)]
        clients[0][1].write(PREFACE[:3])

        async def ended(reader: asyncio.StreamReader) -> float:
            with suppress(ConnectionError):
                await reader.read()
            return loop.time() - began

        async with asyncio.timeout(30):
            ends = await asyncio.gather(*(ended(reader) for reader, _ in clients))
        assert sum(end < 0.29 for end in ends) <= 9
        assert sum(end >= 0.29 for end in ends) <= 4
        for _, writer in clients:
            writer.close()
        assert await acknowledged(one.target, folders[Role.ENGINE], 1) == [1]


async def test_a_silent_peer_with_a_certificate_that_sends_no_preface_is_ended(
    folders: dict[Role, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_server, "HANDSHAKE_S", 0.3)
    context = ssl.create_default_context(cafile=str(folders[Role.ENGINE] / "..data" / "ca.crt"))
    at = folders[Role.ENGINE] / "..data"
    context.load_cert_chain(at / "tls.crt", at / "tls.key")
    async with serving(folders[Role.GATEWAY]) as one, asyncio.timeout(30):
        host, port = one.target.split(":")
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=Role.GATEWAY.dns_name)
        with suppress(ConnectionError):
            assert not await reader.read()
        writer.transport.abort()
        assert not one.sessions


async def test_a_server_that_stops_sends_what_is_to_be_sent(folders: dict[Role, Path]) -> None:
    async with serving(folders[Role.GATEWAY]) as one:
        reader, writer = await dial(one.target, folders[Role.ENGINE], Role.GATEWAY)
        writer.write(frame(TokenBatch(number=1)))
        await read_frame(reader, TokenAck)
    with pytest.raises((EOFError, OSError)):
        await read_frame(reader, TokenAck)
    assert [session.ends for session in one.sessions] == [1]
    writer.close()


async def test_a_unix_socket_needs_no_certificates(sockets: Path) -> None:
    async with serving(None, f"unix:{sockets}/s") as one:
        assert await acknowledged(one.target, None, 1, 2) == [1, 2]


@pytest.mark.parametrize("target", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "somewhere:7000"])
async def test_nothing_is_served_to_other_machines_without_certificates(target: str) -> None:
    with pytest.raises(TlsError, match="needs certificates"):
        await FrameServer("TokenSink", Role.ENGINE, Echo, MOST).start(target, None)


@pytest.mark.parametrize("target", ["nonsense", "host:", ":80", "host:port"])
async def test_what_is_no_address_is_said(target: str) -> None:
    with pytest.raises(OSError, match="is not HOST:PORT"):
        await dial(target, None, Role.GATEWAY)


async def test_certificates_that_are_none_are_said(tmp_path: Path, folders: dict[Role, Path]) -> None:
    (tmp_path / "bad").mkdir()
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / "bad" / name).write_text("nonsense")
    server = FrameServer("TokenSink", Role.ENGINE, Echo, MOST)
    with pytest.raises(TlsError, match="not a certificate, its key and an authority"):
        await server.start("127.0.0.1:0", tmp_path / "bad")
    with pytest.raises(TlsError, match="cannot be read"):
        await server.start("127.0.0.1:0", tmp_path / "none")


async def test_many_small_frames_are_handled_a_few_at_a_turn_and_none_is_lost() -> None:
    sessions: list[Echo] = []
    server = FrameServer("TokenSink", Role.ENGINE, lambda one: sessions.append(Echo(one)) or sessions[-1], MOST)
    port = await server.start("127.0.0.1:0", None)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(PREFACE + bytes(4 * 20_000))  # empty frames: batches with the number 0
    seen = []
    while not seen or seen[-1] < 20_000:
        await asyncio.sleep(0)
        seen.append(len(sessions[0].received_numbers) if sessions else 0)
    assert max(b - a for a, b in pairwise(seen)) <= 2 * frame_server.FRAMES_A_TURN
    writer.close()
    server.stop()
