"""Reports that wait for the scheduler, and heartbeats that would repeat one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from aegaeon_proto.engine.ids import CommandId, InstanceId
from aegaeon_proto.engine.reports import CommandDone, CommandSkipped, Memory, OutsideSlabs
from aegaeon_sidecar.engine.outbox import Outbox

HERE = InstanceId("engine")
FREE = Memory(5, 7, outside=OutsideSlabs(9, 3, 3))


def done(memory: Memory = FREE) -> CommandDone:
    return CommandDone(HERE, CommandId(1), 0.1, memory)


@pytest.fixture
async def outbox() -> Outbox:
    made = Outbox(asyncio.get_running_loop())
    made.begin(1)
    return made


async def test_a_heartbeat_repeats_a_report_that_named_the_same_memory_a_moment_ago(outbox: Outbox) -> None:
    assert not outbox.repeats(FREE, 60.0)
    outbox.post(done(), 1)
    assert outbox.repeats(FREE, 60.0)
    assert outbox.repeats(replace(FREE, outside=OutsideSlabs(9, 4, 4)), 60.0)  # the next report has it
    assert not outbox.repeats(replace(FREE, slabs_free=6), 60.0)
    assert not outbox.repeats(FREE, 0.0)  # it was longer ago


async def test_reports_without_memory_and_those_that_are_dropped_are_not_repeated(outbox: Outbox) -> None:
    outbox.post(CommandSkipped(HERE, CommandId(2), CommandId(1)), 1)
    outbox.post(done(), 2)  # of a stream that is over
    assert not outbox.repeats(FREE, 60.0)
    outbox.post(done(), 1)
    outbox.begin(2)
    assert not outbox.repeats(FREE, 60.0)
