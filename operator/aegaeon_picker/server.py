"""The gRPC services: ext_proc for Envoy, and health under every name that gateways and their manifests probe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_grpc
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest as Request
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingResponse as Response
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health

from aegaeon_picker.exchange import Exchange
from aegaeon_picker.fleet import Fleet
from aegaeon_picker.metrics import Metrics

log = logging.getLogger(__name__)

HEALTH_NAMES = ("", "liveness", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor")
ALIVE = "liveness"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Picker(ext_proc_grpc.ExternalProcessorServicer):  # type: ignore[misc]  # xds-protos has no types
    """One stream for each HTTP request."""

    def __init__(self, fleet: Fleet, metrics: Metrics, conformance: bool) -> None:
        self._fleet, self._metrics, self._conformance = fleet, metrics, conformance

    async def Process(
        self, requests: AsyncIterator[Request], context: grpc.aio.ServicerContext[Request, Response]
    ) -> None:
        exchange = Exchange(self._fleet, self._conformance)
        reading = asyncio.ensure_future(context.read())  # the next message comes in while this one is answered
        try:
            while (request := await reading) is not grpc.aio.EOF:
                reading = asyncio.ensure_future(context.read())
                for response in exchange.answer(request):
                    await context.write(response)
        finally:
            reading.cancel()
            exchange.close()
            self._metrics.ended(exchange.refused)


@dataclass(slots=True)
class Served:
    """The running servers and the ports they listen on."""

    port: int
    health_port: int
    _health: health.HealthServicer
    _servers: list[grpc.aio.Server] = field(default_factory=list)

    async def ready(self, ready: bool) -> None:
        """Say by every name but `liveness` whether requests can be routed."""
        for name in HEALTH_NAMES:
            await self._health.set(name, _SERVING if ready or name == ALIVE else _NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Open streams have `grace_s` to end."""
        await self.ready(False)
        for server in self._servers:
            await server.stop(grace_s)


async def serve(picker: Picker, listen: str, health_listen: str, credentials: grpc.ServerCredentials | None) -> Served:
    """Start both servers; health is without TLS, as kubelet probes it. Raises RuntimeError when a port is taken."""
    servicer = health.HealthServicer()
    main, probes = grpc.aio.server(), grpc.aio.server()
    ext_proc_grpc.add_ExternalProcessorServicer_to_server(picker, main)
    for server in (main, probes):
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = main.add_secure_port(listen, credentials) if credentials else main.add_insecure_port(listen)
    served = Served(port, probes.add_insecure_port(health_listen), servicer, [main, probes])
    await served.ready(False)
    for server in (main, probes):
        await server.start()
    return served
