"""A real Envoy in front of a real picker process and of servers that tell what reached them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aegaeon_cli.demo.stack import free_port

ENVOY = Path(sys.executable).with_name("envoy")
START_S = 30.0
_PLAIN = {
    "name": "raw",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"},
}
_TLS = {
    "name": "tls",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"},
}


@dataclass(slots=True)
class Echo:
    """A server that answers what it was asked, or streams as many events as the client waits for."""

    port: int = 0
    seen: list[str] = field(default_factory=list)
    more: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path)
        if request.path == "/stream":
            return await self._stream(request)
        body = await request.read()
        return web.json_response({"port": self.port, "bytes": len(body), "headers": dict(request.headers)})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        await self.more.wait()
        await response.write(b"data: second\n\n")
        return response


@asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    server = Echo()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_route("*", "/{tail:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@asynccontextmanager
async def process(*argv: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A child that is asked to end, and must."""
    child = await asyncio.create_subprocess_exec(*argv)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGTERM)
        await asyncio.wait_for(child.wait(), START_S)


@dataclass(frozen=True, slots=True)
class Way:
    """The whole way of a request: where to ask, what is behind."""

    url: str
    picker_port: int
    health_port: int
    picker: asyncio.subprocess.Process


@asynccontextmanager
async def way(
    folder: Path, *ports: int, tls: str = "off", extra: tuple[str, ...] = (), endpoints: str = ""
) -> AsyncIterator[Way]:
    """Envoy, and a picker that knows `endpoints` (else all of `ports`)."""
    listen, admin, picked, health = (free_port() for _ in range(4))
    fixed = endpoints or ",".join(f"127.0.0.1:{port}" for port in ports)
    config = folder / "envoy.yaml"
    config.write_text(_config(ports, admin, listen, picked, tls))
    picker = (sys.executable, "-m", "aegaeon_picker", "--endpoints", fixed, "--listen", f"127.0.0.1:{picked}")
    options = ("--health-listen", f"127.0.0.1:{health}", "--metrics-port", "0", "--grace", "1", "--tls", tls)
    async with process(*picker, *options, *extra) as child:
        await _healthy(health)
        envoy = (str(ENVOY), "-c", str(config), "--use-dynamic-base-id", "--concurrency", "1", "-l", "error")
        async with process(*envoy):
            await _answers(f"http://127.0.0.1:{admin}/ready")
            yield Way(f"http://127.0.0.1:{listen}", picked, health, child)


def _config(ports: tuple[int, ...], admin: int, listen: int, picker: int, tls: str) -> str:
    backends = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports
    ]
    return Template((Path(__file__).parent / "envoy.yaml").read_text()).substitute(
        ADMIN=admin,
        LISTEN=listen,
        PICKER=picker,
        TRANSPORT=json.dumps(_PLAIN if tls == "off" else _TLS),
        BACKENDS=json.dumps(backends),
    )


async def _healthy(port: int) -> None:
    async with asyncio.timeout(START_S), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        stub = health_pb2_grpc.HealthStub(channel)
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(service="readiness")):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return


async def _answers(url: str) -> None:
    async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.05)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened
