"""Amendments of turns at a modelled engine."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import CommandId, InstanceId, ModelName, SeqId
from aegaeon_simulator.engine.lanes import Lanes

SEQ = SeqId("r", 0)
TURNS = [
    cmd.Turn(ModelName("m"), warm_up=True),
    cmd.Turn(ModelName("m"), (cmd.PrefillPart(SEQ, 4),), (SEQ,), steps=3, slabs=2, report_steps=16),
]


@pytest.mark.parametrize("turn", TURNS, ids=["warm-up", "work"])
@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
def test_an_amendment_keeps_every_field_that_it_does_not_change(turn: cmd.Turn, running: bool) -> None:
    lanes = Lanes()
    send = cmd.Send(InstanceId("e"), CommandId(7), turn, (), "a reason")
    lanes.accept(send)
    if running:
        lanes.active["compute"] = lanes.queues["compute"].popleft()
    lanes.amend(cmd.Amend(CommandId(7), slabs=5))
    amended = lanes.active["compute"] if running else lanes.queues["compute"][0]
    assert amended == replace(send, body=replace(turn, slabs=turn.slabs + 5))


def test_these_turns_differ_from_the_default_in_every_field() -> None:
    default = cmd.Turn(ModelName(""))
    for field in fields(cmd.Turn):
        assert any(getattr(turn, field.name) != getattr(default, field.name) for turn in TURNS), field.name
