"""Who may say what: every role against every method and every server, with real certificates over real sockets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from pool_certificates import mount, named

from aegaeon_operator.pki import Pair, is_of, issue
from aegaeon_proto.certificates import TlsError
from aegaeon_proto.channels import connect, open_blocking_channel, open_channel, why
from aegaeon_proto.roles import AUDITED, CALLERS, Role, role_of
from aegaeon_proto.servers import add_port, make_server
from aegaeon_proto.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    gateway_pb2,
    gateway_pb2_grpc,
    leadership_pb2,
    leadership_pb2_grpc,
    model_pb2,
)

NOW = datetime.now(UTC)
ALONE = (("grpc.use_local_subchannel_pool", 1),)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for module in (admin_pb2, engine_pb2, gateway_pb2, leadership_pb2, model_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Everything(
    admin_pb2_grpc.AdminServicer,
    engine_pb2_grpc.EngineServicer,
    leadership_pb2_grpc.LeadershipServicer,
):
    """Answers every authorized caller; streams are of both kinds that grpc.aio knows."""

    async def SetCatalog(self, request: Any, context: Any) -> admin_pb2.SetCatalogReply:
        return admin_pb2.SetCatalogReply()

    async def SetTenants(self, request: Any, context: Any) -> admin_pb2.SetTenantsReply:
        return admin_pb2.SetTenantsReply()

    async def AwaitDemand(self, request: Any, context: Any) -> admin_pb2.AwaitDemandReply:
        return admin_pb2.AwaitDemandReply()

    async def SetEnding(self, request: Any, context: Any) -> admin_pb2.SetEndingReply:
        return admin_pb2.SetEndingReply()

    async def Status(self, request: Any, context: Any) -> admin_pb2.AdminStatus:
        return admin_pb2.AdminStatus()

    async def Ask(self, request: Any, context: Any) -> leadership_pb2.LeaderReply:
        return leadership_pb2.LeaderReply()

    async def Attach(self, requests: Any, context: Any) -> None:
        await context.write(engine_pb2.Commands())

    async def Announce(self, request: Any, context: Any) -> engine_pb2.Announced:
        return engine_pb2.Announced()


class Frontend(gateway_pb2_grpc.FrontendServicer):
    async def Serve(self, requests: Any, context: Any) -> None:
        await context.write(gateway_pb2.GatewayReply())

    async def Status(self, request: Any, context: Any) -> AsyncIterator[gateway_pb2.PoolStatus]:
        yield gateway_pb2.PoolStatus()


@asynccontextmanager
async def serving(tls: Path | None, target: str = "127.0.0.1:0") -> AsyncIterator[str]:
    server, everything = make_server(), Everything()
    admin_pb2_grpc.add_AdminServicer_to_server(everything, server)
    engine_pb2_grpc.add_EngineServicer_to_server(everything, server)
    gateway_pb2_grpc.add_FrontendServicer_to_server(Frontend(), server)
    leadership_pb2_grpc.add_LeadershipServicer_to_server(everything, server)
    port = add_port(server, target, tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}" if target.endswith(":0") else target
    finally:
        await server.stop(0)


async def answer(channel: grpc.aio.Channel, method: str) -> tuple[grpc.StatusCode, str]:
    """How a call ends, and what is said about it; an empty message makes sense to every method here."""
    of = METHODS[method]
    if of.client_streaming:
        call: Any = channel.stream_stream(method)()
        await call.done_writing()
    elif of.server_streaming:
        call = channel.unary_stream(method)(b"")
    else:
        call = channel.unary_unary(method)(b"")
    async with asyncio.timeout(60):
        if of.server_streaming:
            while await read(call):
                pass
        return await call.code(), await call.details()


async def read(call: Any) -> bool:
    """Whether there was one more message."""
    try:
        return await call.read() is not grpc.aio.EOF
    except grpc.aio.AioRpcError:
        return False


def test_the_table_names_every_method_that_there_is_and_no_other() -> None:
    assert set(CALLERS) == set(METHODS)
    assert all(CALLERS.values())
    assert set(CALLERS) >= AUDITED


@pytest.mark.parametrize("role", Role)
async def test_a_role_may_call_only_the_methods_in_its_table(
    role: Role, folders: dict[Role, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        serving(folders[Role.SCHEDULER]) as target,
        open_channel(target, folders[role], Role.SCHEDULER, ALONE) as channel,
    ):
        for method, callers in CALLERS.items():
            caplog.clear()
            code, said = await answer(channel, method)
            short = method.rpartition(".")[2].replace("/", ".")
            if role in callers:
                assert code is grpc.StatusCode.OK, (method, said)
                assert (f"audit: {role} at " in caplog.text) == (method in AUDITED)
            else:
                assert code is grpc.StatusCode.PERMISSION_DENIED, (method, said)
                assert said == (
                    f"a certificate of role {role} may not call {short}, which is for: {' or '.join(sorted(callers))}"
                )
                assert "audit: refused ipv4:127.0.0.1:" in caplog.text
                assert said in caplog.text


async def test_a_thread_without_a_loop_calls_with_its_certificate_too(folders: dict[Role, Path]) -> None:
    def announce(target: str, peer: Role) -> None:
        with open_blocking_channel(target, folders[Role.ENGINE], peer) as channel:
            engine_pb2_grpc.EngineStub(channel).Announce(engine_pb2.Announcement(), timeout=10)

    async with serving(folders[Role.SCHEDULER]) as target:
        await asyncio.to_thread(announce, target, Role.SCHEDULER)
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            await asyncio.to_thread(announce, target, Role.GATEWAY)


@pytest.mark.parametrize("names", [("aegaeon.internal",), ("gateway.aegaeon.internal", "engine.aegaeon.internal"), ()])
async def test_a_certificate_of_the_pool_that_names_no_one_role_may_call_nothing(
    names: tuple[str, ...], tmp_path: Path, authority: Pair, folders: dict[Role, Path]
) -> None:
    old = mount(tmp_path / "old", authority, named(authority, NOW, *names))
    async with (
        serving(folders[Role.SCHEDULER]) as target,
        open_channel(target, old, Role.SCHEDULER, ALONE) as channel,
    ):
        for method in CALLERS:
            code, said = await answer(channel, method)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert said.startswith("a certificate without a role of the pool may not call")


@pytest.mark.parametrize("server", Role)
async def test_clients_refuse_a_server_of_another_role(server: Role, folders: dict[Role, Path]) -> None:
    async with serving(folders[server]) as target:
        for expected in Role:
            async with open_channel(target, folders[Role.ENGINE], expected, ALONE) as channel:
                if expected is server:
                    await connect(channel, 60)
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await connect(channel, 60)
            assert "belongs to another role" in why(error.value, folders[Role.ENGINE])


async def test_a_server_whose_certificate_names_no_role_is_refused_with_a_sentence(
    tmp_path: Path, authority: Pair, folders: dict[Role, Path]
) -> None:
    old = mount(tmp_path / "old", authority, named(authority, NOW, "aegaeon.internal"))
    async with serving(old) as target, open_channel(target, folders[Role.ENGINE], Role.SCHEDULER, ALONE) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await connect(channel, 60)
    assert "belongs to another role" in why(error.value, old)


async def test_a_unix_socket_serves_every_process_that_may_open_it_and_changes_are_logged(
    sockets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        serving(None, f"unix:{sockets}/s") as target,
        open_channel(target, None, Role.SCHEDULER, ALONE) as channel,
    ):
        for method in CALLERS:
            assert (await answer(channel, method))[0] is grpc.StatusCode.OK
    assert "audit: a local process at unix:" in caplog.text
    assert "called Admin.SetTenants" in caplog.text


@pytest.mark.parametrize("target", ["0.0.0.0:0", "[::]:0", "10.0.0.1:0", "dns:///somewhere:7000", "*:7000"])
async def test_nothing_is_served_to_other_machines_without_certificates(target: str) -> None:
    with pytest.raises(TlsError, match="needs certificates"):
        add_port(make_server(), target, None)


@pytest.mark.parametrize("target", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
async def test_the_loopback_interface_needs_no_certificates(target: str) -> None:
    assert add_port(make_server(), target, None) > 0


def test_a_certificate_has_the_role_it_was_issued_for(authority: Pair) -> None:
    for role in Role:
        certificate = issue(authority, role, NOW).certificate
        assert [one for one in Role if is_of(certificate, one)] == [role]
    assert not any(is_of(named(authority, NOW, "aegaeon.internal").certificate, role) for role in Role)
    assert not any(is_of(authority.certificate, role) for role in Role)


def test_a_role_is_named_by_one_whole_name() -> None:
    assert role_of(["engine.aegaeon.internal"]) is Role.ENGINE
    assert role_of(iter(["engine.aegaeon.internal"])) is Role.ENGINE
    for names in ([], ["engine"], ["x.engine.aegaeon.internal"], ["ENGINE.aegaeon.internal"], ["*.aegaeon.internal"]):
        assert role_of(names) is None
