"""gRPC's health service, asked by its own client."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from aegaeon_picker.health import NAMES, Health
from aegaeon_picker.transport.server import Server
from aegaeon_proto.channels import plain_channel

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING


@dataclass(frozen=True, slots=True)
class Asked:
    """The service and a client of it."""

    health: Health
    channel: grpc.aio.Channel
    stub: health_pb2_grpc.HealthStub


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    health = Health()
    server = Server(health.methods)
    await server.start("127.0.0.1", 0)
    async with plain_channel(f"127.0.0.1:{server.port}") as channel:
        yield Asked(health, channel, health_pb2_grpc.HealthStub(channel))
    await server.stop(0)


async def test_live_from_the_start_and_ready_when_set(asked: Asked) -> None:
    for ready in (False, True):
        asked.health.set_ready(ready)
        for name in NAMES:
            answer = await asked.stub.Check(HealthCheckRequest(service=name))
            assert answer.status == (SERVING if ready or name == "liveness" else NOT_SERVING)


async def test_an_unknown_name_is_not_found(asked: Asked) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="unknown service 'other'") as raised:
        await asked.stub.Check(HealthCheckRequest(service="other"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


async def test_watchers_receive_every_change(asked: Asked) -> None:
    watch = asked.stub.Watch(HealthCheckRequest(service="readiness"))
    unknown = asked.stub.Watch(HealthCheckRequest(service="other"))
    assert (await unknown.read()).status == HealthCheckResponse.SERVICE_UNKNOWN
    assert (await watch.read()).status == NOT_SERVING
    asked.health.set_ready(True)
    assert (await watch.read()).status == SERVING
    asked.health.set_ready(True)
    asked.health.set_ready(False)
    assert (await watch.read()).status == NOT_SERVING
    watch.cancel()


def test_a_watch_that_ends_during_a_notification_does_not_block_others() -> None:
    """As where its bytes are too many: its stream is dropped then."""
    health, statuses = Health(), list[bytes]()

    def end(number: int, answer: bytes) -> None:
        statuses.append(answer)
        if health.ready:
            watches[number].close()

    watches = [health.methods["/grpc.health.v1.Health/Watch"](partial(end, number)) for number in range(2)]
    for watch in watches:
        watch.message(HealthCheckRequest(service="readiness").SerializeToString())
    health.set_ready(True)
    assert statuses[2:] == [HealthCheckResponse(status=SERVING).SerializeToString()] * 2


async def test_an_unparsable_request_is_an_internal_error(asked: Asked) -> None:
    check = asked.channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.aio.AioRpcError, match="malformed HealthCheckRequest") as raised:
        await check(b"\xff")
    assert raised.value.code() == grpc.StatusCode.INTERNAL
