"""A gateway's first request, as a scheduler gets it."""

from __future__ import annotations

from typing import Any

import grpc

from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc


async def submitted(channel: grpc.aio.Channel, model: str) -> Any:
    """The stream of a gateway that has asked for one token of a model; it ends when it is cancelled."""
    call = gateway_pb2_grpc.FrontendStub(channel).Serve()
    hello = gateway_pb2.GatewayHello(gateway="gw", sink="unix:/none")
    await call.write(gateway_pb2.GatewayMessage(hello=hello))
    request = gateway_pb2.Submit(request="r", model=model, prompt=[1], choices=[gateway_pb2.Choice(epoch=1)])
    request.limits.max_tokens = 1
    await call.write(gateway_pb2.GatewayMessage(submit=request))
    return call
