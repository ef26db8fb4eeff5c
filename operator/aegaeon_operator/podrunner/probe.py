"""A single readiness probe of a pod; a pod that is not ready is no error."""

from __future__ import annotations

import asyncio

import grpc

from aegaeon_operator.reconcile import AttachedProbe, HttpProbe, Probe, SocketProbe
from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc

_TIMEOUT_S = 2.0


async def ready(probe: Probe) -> bool:
    """Return whether the probe succeeds within two seconds."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            match probe:
                case SocketProbe():
                    return await _socket_ready(probe)
                case HttpProbe():
                    return await _http_ready(probe)
                case AttachedProbe():
                    return await _attached(probe)
    except (OSError, TimeoutError, grpc.aio.AioRpcError):
        return False


async def _socket_ready(probe: SocketProbe) -> bool:
    _, writer = await asyncio.open_unix_connection(probe.path)
    writer.close()
    await writer.wait_closed()
    return True


async def _http_ready(probe: HttpProbe) -> bool:
    reader, writer = await asyncio.open_connection(probe.host, probe.port)
    try:
        writer.write(f"GET {probe.path} HTTP/1.0\r\nHost: {probe.host}\r\n\r\n".encode())
        await writer.drain()
        status = await reader.readline()
    finally:
        writer.close()
    return status.split(b" ")[1:2] == [b"200"]


async def _attached(probe: AttachedProbe) -> bool:
    async with plain_channel(probe.scheduler) as channel:
        answers = gateway_pb2_grpc.FrontendStub(channel).Status(gateway_pb2.StatusRequest())
        async for status in answers:
            return any(i.instance == probe.instance and i.alive for i in status.instances)
    return False
