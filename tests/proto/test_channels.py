"""Mutual TLS between the processes of a pool: real sockets, real certificates of the pool's authority."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dead_proxy
import grpc
import pytest
from pool_certificates import mount

from aegaeon_operator.pki import Pair, is_due, issue, make_authority, signed_by
from aegaeon_proto.certificates import TlsError
from aegaeon_proto.channels import connect, open_channel, why
from aegaeon_proto.roles import Role
from aegaeon_proto.servers import add_port, make_server
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc

NOW = datetime.now(UTC)
LIFE = timedelta(days=1)
ALONE = (("grpc.use_local_subchannel_pool", 1),)


class Answering(admin_pb2_grpc.AdminServicer):
    """Says who asks."""

    async def Status(self, request: Any, context: Any) -> admin_pb2.AdminStatus:
        (name,) = context.auth_context().get("x509_common_name", [b"none"])
        return admin_pb2.AdminStatus(incarnation=name.decode())


@pytest.fixture(scope="module")
def foreign() -> Pair:
    return make_authority("blue", NOW)


@pytest.fixture
def server(tmp_path: Path, authority: Pair) -> Path:
    """Certificates of a scheduler of the pool."""
    return mount(tmp_path / "server", authority, issue(authority, Role.SCHEDULER, NOW))


@pytest.fixture
def client(tmp_path: Path, authority: Pair) -> Path:
    """Certificates of its operator."""
    return mount(tmp_path / "client", authority, issue(authority, Role.OPERATOR, NOW))


@asynccontextmanager
async def serving(tls: Path | None) -> AsyncIterator[str]:
    server = make_server()
    admin_pb2_grpc.add_AdminServicer_to_server(Answering(), server)
    port = add_port(server, "127.0.0.1:0", tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def ask(target: str, tls: Path | None) -> str:
    async with open_channel(target, tls, Role.SCHEDULER, ALONE) as channel:
        await connect(channel, 10)
        return (await admin_pb2_grpc.AdminStub(channel).Status(admin_pb2.AdminStatusRequest())).incarnation


async def refusal(target: str, tls: Path | None) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await ask(target, tls)
    return why(error.value, tls)


async def test_a_peer_with_a_certificate_of_the_pool_is_authenticated_by_its_role(server: Path, client: Path) -> None:
    async with serving(server) as target:
        assert await ask(target, client) == "operator.aegaeon.internal"


async def test_a_server_of_another_pool_is_refused_with_a_sentence(client: Path, tmp_path: Path, foreign: Pair) -> None:
    server = mount(tmp_path / "server", foreign, issue(foreign, Role.SCHEDULER, NOW))
    async with serving(server) as target:
        sentence = await refusal(target, client)
    assert sentence.startswith("its certificate is not one of this pool: unable to get local issuer certificate")
    assert str(client) in sentence


async def test_a_client_of_another_pool_is_refused_and_both_sides_report_it(
    server: Path, tmp_path: Path, authority: Pair, foreign: Pair, capfd: pytest.CaptureFixture[str]
) -> None:
    client = mount(tmp_path / "client", authority, issue(foreign, Role.OPERATOR, NOW))
    async with serving(server) as target:
        assert "may have rejected the client certificate" in await refusal(target, client)
    assert "CERTIFICATE_VERIFY_FAILED" in capfd.readouterr().err  # gRPC's own word, in the server's log


async def test_an_expired_certificate_and_none_at_all_are_refused(
    server: Path, tmp_path: Path, authority: Pair
) -> None:
    old = mount(
        tmp_path / "old", authority, issue(authority, Role.OPERATOR, NOW - timedelta(days=9), timedelta(days=1))
    )
    async with serving(server) as target:
        assert "may have rejected the client certificate" in await refusal(target, old)
        await refusal(target, None)


async def test_a_client_with_certificates_reports_a_server_without_tls(client: Path) -> None:
    async with serving(None) as target:
        assert "does not use TLS" in await refusal(target, client)


async def test_certificates_are_renewed_during_open_streams_without_a_restart(
    server: Path, client: Path, authority: Pair, foreign: Pair
) -> None:
    async with serving(server) as target, open_channel(target, client, Role.SCHEDULER, ALONE) as before:
        status = admin_pb2_grpc.AdminStub(before).Status
        assert (await status(admin_pb2.AdminStatusRequest())).incarnation == "operator.aegaeon.internal"
        both = Pair(authority.certificate + foreign.certificate, authority.key)
        mount(server, both, issue(foreign, Role.SCHEDULER, NOW))  # a new authority; the old one is still believed
        assert (await status(admin_pb2.AdminStatusRequest())).incarnation == "operator.aegaeon.internal"
        assert "not one of this pool" in await refusal(target, client)
        mount(client, both, issue(authority, Role.OPERATOR, NOW))
        assert await ask(target, client) == "operator.aegaeon.internal"


async def test_unreadable_certificates_leave_the_server_unchanged(
    server: Path, client: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(server) as target:
        (server / "..data" / "tls.key").unlink()
        assert await ask(target, client) == "operator.aegaeon.internal"
    assert "certificates stay as they were" in caplog.text
    with pytest.raises(TlsError, match=r"tls\.key: cannot be read"):
        open_channel("127.0.0.1:1", server, Role.SCHEDULER)


def test_certificates_have_a_renewal_time_and_a_role(authority: Pair, foreign: Pair) -> None:
    pair = issue(authority, Role.SCHEDULER, NOW, timedelta(days=90))
    assert not is_due(pair.certificate, NOW + timedelta(days=59))
    assert is_due(pair.certificate, NOW + timedelta(days=61))
    assert is_due(pair.certificate, NOW - timedelta(hours=1)), "a clock that was ahead issued it"
    assert signed_by(pair.certificate, authority.certificate)
    assert not signed_by(pair.certificate, foreign.certificate)
    assert signed_by(pair.certificate, foreign.certificate + authority.certificate)


@pytest.mark.parametrize("tls", [True, False])
async def test_a_proxy_of_the_environment_is_not_used(
    tmp_path: Path, authority: Pair, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    dead_proxy.use(monkeypatch)
    roles = (Role.SCHEDULER, Role.OPERATOR) if tls else ()
    server, client = [mount(tmp_path / role, authority, issue(authority, role, NOW)) for role in roles] or (None, None)
    async with serving(server) as target:
        assert await ask(target, client) == ("operator.aegaeon.internal" if tls else "none")
