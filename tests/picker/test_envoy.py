"""Through a real Envoy, configured as an inference gateway configures it."""

import asyncio
import io
import sys
from pathlib import Path

import aiohttp
import pytest
from e2e.envoy import free_ports, way
from grpc_health.v1 import health_pb2, health_pb2_grpc
from picker.conftest import echo

from aegaeon_proto.channels import plain_channel


@pytest.mark.parametrize("tls", ["off", "selfSigned"])
async def test_a_request_reaches_an_endpoint_whole(tmp_path: Path, session: aiohttp.ClientSession, tls: str) -> None:
    async with echo() as server, way(tmp_path, server.port, tls=tls) as served:
        async with session.post(f"{served.url}/v1", data=io.BytesIO(b"x" * 3_000_000)) as response:
            answer = await response.json()
        assert (response.status, answer["bytes"], answer["port"]) == (200, 3_000_000, server.port)
        async with session.get(f"{served.url}/v1/models") as response:
            assert (await response.json())["bytes"] == 0


async def test_equal_endpoints_share_the_requests(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with echo() as one, echo() as two, way(tmp_path, one.port, two.port) as served:
        for _ in range(6):
            async with session.post(f"{served.url}/v1", data=b"{}") as response:
                assert response.status == 200
        assert (len(one.seen), len(two.seen)) == (3, 3)


async def test_an_event_arrives_before_the_next_is_written(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    async with (
        echo() as server,
        way(tmp_path, server.port) as served,
        session.post(f"{served.url}/stream", data=b"{}") as response,
    ):
        assert await response.content.readuntil(b"\n\n") == b"data: first\n\n"
        server.more.set()
        assert await response.content.read() == b"data: second\n\n"


async def test_new_requests_avoid_an_endpoint_with_a_long_stream(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    async with (
        echo() as one,
        echo() as two,
        way(tmp_path, one.port, two.port) as served,
        session.post(f"{served.url}/stream", data=b"{}") as response,
    ):
        await response.content.readuntil(b"\n\n")
        busy, idle = (one, two) if one.seen else (two, one)
        for _ in range(4):
            async with session.post(f"{served.url}/v1", data=b"{}") as other:
                assert other.status == 200
        assert len(idle.seen) == 4
        busy.more.set()
        await response.content.read()


async def test_no_ready_endpoint_is_a_503_that_a_client_understands(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    async with echo() as server, way(tmp_path, server.port, endpoints=",") as served:
        async with session.post(f"{served.url}/v1", data=b"{}") as response:
            assert response.status == 503
            assert response.headers["retry-after"] == "1"
            assert "no endpoint is ready" in (await response.json())["error"]["message"]
        assert not server.seen


async def test_a_test_header_chooses_the_endpoint_for_conformance(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    async with echo() as one, echo() as two, way(tmp_path, one.port, two.port, extra=("--conformance",)) as served:
        chosen = {"test-epp-endpoint-selection": f"127.0.0.1:{two.port}"}
        for _ in range(3):
            async with session.post(f"{served.url}/v1", data=b"{}", headers=chosen) as response:
                assert response.headers["x-conformance-test-served-endpoint"] == f"127.0.0.1:{two.port}"
        assert (len(one.seen), len(two.seen)) == (0, 3)


async def test_an_endpoint_that_is_gone_is_passed_over(tmp_path: Path, session: aiohttp.ClientSession) -> None:
    (gone,) = free_ports(1)
    async with echo() as server:
        named = f"127.0.0.1:{gone},127.0.0.1:{server.port}"
        async with way(tmp_path, server.port, endpoints=named) as served:
            for _ in range(4):
                async with session.post(f"{served.url}/v1", data=b"{}") as response:
                    assert response.status == 200


async def test_health_answers_to_the_names_that_gateways_probe_and_is_shut_down_first(tmp_path: Path) -> None:
    async with echo() as server, way(tmp_path, server.port) as served:
        async with plain_channel(f"127.0.0.1:{served.health_port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for name in ("", "liveness", "readiness", "inference-extension"):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        served.picker.terminate()
        assert await asyncio.wait_for(served.picker.wait(), 30) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "either --pool or --endpoints"),
        (("--endpoints", "here"), "--endpoints: 'here' is not ip:port"),
        (("--endpoints", "127.0.0.1:1", "--listen", "here"), "--listen: 'here' is not ip:port"),
        (("--endpoints", "127.0.0.1:1", "--tls", "/nowhere"), "/nowhere: tls.key and tls.crt cannot be read"),
    ],
)
async def test_wrong_options_are_refused_with_the_remedy(options: tuple[str, ...], said: str) -> None:
    listen = ("--listen", "127.0.0.1:0", "--health-listen", "127.0.0.1:0", "--metrics-port", "0")
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aegaeon_picker", *listen, *options, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 2
    assert said in errors.decode()
