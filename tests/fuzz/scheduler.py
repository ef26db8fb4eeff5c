"""Messages that reach the scheduler: reports of engines, submissions of gateways, the administrator's catalogs."""

from __future__ import annotations

from pathlib import Path

from fuzz.shape import Draw, raw, received
from fuzz.target import One, Target

_WORDS = ("r", "s", "m", "engine-0", "gateway", "f32-1x8x16")


def _reports(_: Path) -> One:
    from aegaeon_proto.codec.errors import ProtocolError
    from aegaeon_proto.codec.hello import instance_up_from
    from aegaeon_proto.codec.reports import ReportDecoder, command_named
    from aegaeon_proto.engine.ids import InstanceId
    from aegaeon_proto.engine.reports import Memory
    from aegaeon_proto.v1 import engine_pb2
    from aegaeon_scheduler.service.codec.reports import model_reported

    def feed(data: bytes) -> None:
        body, draw = raw(data), Draw(data[1:])
        engine = InstanceId("engine-0")
        decoder = ReportDecoder(engine, "n", Memory(0, 0, {}, {}), 0)
        for _ in range(4):
            report = received(body, draw, engine_pb2.Report, _WORDS)
            if report is None:
                return
            try:
                command_named(report)
                if report.WhichOneof("body") == "hello":
                    up = instance_up_from(report.hello)
                    assert all((up.instance, up.incarnation))
                elif report.HasField("model"):
                    model_reported(engine, report.model)
                else:
                    decoder.report(report)
            except ProtocolError as error:
                assert str(error)

    return feed


def _frontend(_: Path) -> One:
    from aegaeon_proto.v1 import gateway_pb2
    from aegaeon_scheduler.core.domain import GatewayId
    from aegaeon_scheduler.service.codec.frontend import complaint, submitted

    def feed(data: bytes) -> None:
        submit = received(raw(data), Draw(data[1:]), gateway_pb2.Submit, _WORDS)
        if submit is None or complaint(submit):
            return
        for event in submitted(GatewayId("gateway"), submit, 100.0):
            assert event.prompt_tokens > 0
            assert event.max_tokens > 0
            assert event.epoch > 0
            assert event.arrival <= 100.0

    return feed


TARGETS = (
    Target("engine_reports", _reports, ("aegaeon_proto.codec", "aegaeon_scheduler.service.codec")),
    Target("gateway_messages", _frontend, ("aegaeon_scheduler.service.codec",)),
)
