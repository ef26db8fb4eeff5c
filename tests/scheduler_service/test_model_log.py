"""The log says what happened to a model's requests: in lines with its name, however many requests there are."""

from __future__ import annotations

import pytest

from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import CommandId, GatewayId, InstanceId, ModelName, RejectCode, SeqId
from aegaeon_scheduler.service.model_log import ModelLog

GATEWAY, FIRST, SECOND = GatewayId("g"), InstanceId("engine-0"), InstanceId("engine-1")
LLAMA = ModelName("llama")
TICK = events.Tick()


def seq(number: int) -> SeqId:
    return SeqId(f"r{number}", 0)


def submitted(number: int, defer_s: float = 0.0) -> events.Submitted:
    return events.Submitted(seq(number), 1, GATEWAY, LLAMA, 0.0, 8, 0, 16, defer_s)


def sent(body: commands.Body, instance: InstanceId = FIRST) -> commands.Send:
    return commands.Send(instance, CommandId(1), body, (), "")


def prefill(number: int) -> commands.Send:
    return sent(commands.Turn(LLAMA, (commands.PrefillPart(seq(number), 8),), (), 0, 0))


def adopted(number: int) -> commands.Send:
    return sent(commands.Adopt(seq(number), 1, FIRST, CommandId(1), 1), SECOND)


def lost(number: int) -> commands.SequenceLost:
    return commands.SequenceLost(GATEWAY, seq(number), 1, "engine-0 was lost")


def refused(number: int) -> commands.Reject:
    return commands.Reject(GATEWAY, seq(number), RejectCode.OVERLOADED, "no engine")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", "aegaeon_scheduler.service.model_log")
    return caplog


def test_what_was_held_moved_computed_again_and_refused_is_one_line(lines: pytest.LogCaptureFixture) -> None:
    log = ModelLog()
    for number in range(4):
        log(0.0, submitted(number), [], 0.0)
    log(1.0, TICK, [prefill(0)], 0.0)
    assert lines.messages == [], "a second is no hold"
    log(8.5, TICK, [prefill(1), adopted(0), lost(1), prefill(2), refused(3)], 0.0)
    assert lines.messages == [
        "model llama: 3 waited for more than 2 s, the longest 8.5 s; 1 refused: overloaded; "
        "1 moved from engine-0 to engine-1; 1 computed again: engine-0 was lost"
    ]


def test_a_thousand_requests_are_a_line_every_ten_seconds_and_leave_nothing(lines: pytest.LogCaptureFixture) -> None:
    log = ModelLog()
    for number in range(1000):
        now = number * 0.1
        log(now, submitted(number), [prefill(number), adopted(number)], 0.0)
        log(now + 0.05, TICK, [commands.SequenceEnded(seq(number), 1)], 0.0)
    log(200.0, TICK, [], 0.0)
    assert 10 <= len(lines.messages) <= 12
    moved = sum(int(one.removeprefix("model llama: ").split(" ")[0]) for one in lines.messages)
    assert moved == 1000
    assert len(log) == 0


def test_what_waits_on_purpose_is_not_held(lines: pytest.LogCaptureFixture) -> None:
    log = ModelLog()
    log(0.0, submitted(1, defer_s=3600.0), [], 0.0)
    log(60.0, TICK, [prefill(1)], 0.0)
    assert lines.messages == []
