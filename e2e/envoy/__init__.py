"""A real Envoy, configured as an inference gateway configures it, and a real picker process behind it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

import aiohttp
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aegaeon_proto.channels import plain_channel

ENVOY = Path(sys.executable).with_name("envoy")
START_S = 30.0
_POLL_S = 0.05
_PLAIN = {
    "name": "raw",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"},
}
_TLS = {
    "name": "tls",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"},
}


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
    plain_url: str
    health_port: int
    picker: asyncio.subprocess.Process


@asynccontextmanager
async def way(
    folder: Path, *ports: int, tls: str = "off", extra: tuple[str, ...] = (), endpoints: str = ""
) -> AsyncIterator[Way]:
    """Envoy, and a picker that knows `endpoints` (else all of `ports`)."""
    fixed = endpoints or ",".join(f"127.0.0.1:{port}" for port in ports)

    def ours(listen: int, health: int) -> tuple[str, ...]:
        picker = (sys.executable, "-m", "aegaeon_picker", "--endpoints", fixed, "--listen", f"127.0.0.1:{listen}")
        options = ("--health-listen", f"127.0.0.1:{health}", "--metrics-port", "0", "--grace", "1", "--tls", tls)
        return (*picker, *options, *extra)

    async with way_of(ours, folder, *ports, tls=tls) as made:
        yield made


@asynccontextmanager
async def way_of(
    picker: Callable[[int, int], tuple[str, ...]], folder: Path, *ports: int, tls: str
) -> AsyncIterator[Way]:
    """Envoy and any picker, whose command line `picker` makes of its port and that of its health."""
    listen, plain, admin, picked, health = free_ports(5)
    config = folder / "envoy.json"
    config.write_text(_config(ports, admin, listen, plain, picked, tls))
    async with process(*picker(picked, health)) as child:
        await _healthy(health)
        envoy = (str(ENVOY), "-c", str(config), "--disable-hot-restart", "--concurrency", "1", "-l", "error")
        async with process(*envoy):
            await _answers(f"http://127.0.0.1:{admin}/ready")
            yield Way(f"http://127.0.0.1:{listen}", f"http://127.0.0.1:{plain}", health, child)


def free_ports(count: int) -> list[int]:
    """Free ports of 127.0.0.1, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _config(ports: tuple[int, ...], admin: int, listen: int, plain: int, picker: int, tls: str) -> str:
    backends = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports
    ]
    text = Template((Path(__file__).parent / "static.yaml").read_text()).substitute(
        ADMIN=admin,
        LISTEN=listen,
        PLAIN=plain,
        PICKER=picker,
        TRANSPORT=json.dumps(_PLAIN if tls == "off" else _TLS),
        BACKENDS=json.dumps(backends),
    )
    return json.dumps(yaml.safe_load(text))  # Envoy takes no YAML anchors


async def _healthy(port: int) -> None:
    async with asyncio.timeout(START_S), plain_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        asked = health_pb2.HealthCheckRequest(service="readiness")
        stub = health_pb2_grpc.HealthStub(channel)
        while True:  # not every picker can be watched
            if (await stub.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING:
                return
            await asyncio.sleep(_POLL_S)


async def _answers(url: str) -> None:
    async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(_POLL_S)
