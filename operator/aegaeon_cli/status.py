"""Reads a running pool's status from its scheduler (Frontend.Status)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from aegaeon_cli.errors import NoAnswerError
from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc
from aegaeon_proto.v1.gateway_pb2 import PoolStatus


async def read_status(target: str) -> PoolStatus:
    """Read one status of the scheduler at this gRPC target. Raises NoAnswerError when it does not answer."""
    async for status in watch_status(target, 0.0):
        return status
    raise NoAnswerError(f"the scheduler at {target} closed the stream without an answer; is it the right address?")


async def watch_status(target: str, interval_s: float) -> AsyncIterator[PoolStatus]:
    """Yield a status every `interval_s` seconds (0: only one). Raises NoAnswerError when the scheduler does not answer
    or disconnects."""
    async with plain_channel(target) as channel:
        call = gateway_pb2_grpc.FrontendStub(channel).Status(gateway_pb2.StatusRequest(interval_s=interval_s))
        try:
            async for status in call:
                yield status
        except grpc.aio.AioRpcError as error:
            raise NoAnswerError(
                f"the scheduler at {target} does not answer ({error.code().name}); is it running?"
            ) from None
