"""A turn reads from file to file: the lane's loop, the turn that runs, its steps, their results, the reports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import groupby
from pathlib import Path
from types import FrameType

import pytest
from sidecar.rig import Rig, config, inside, ready, seq

from aegaeon_proto.engine import commands
from aegaeon_proto.engine.commands import PrefillPart
from aegaeon_proto.engine.ids import CommandId, ModelName, SeqId
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.domain.program import Lane
from aegaeon_sidecar.engine import compute
from aegaeon_sidecar.engine.progress import REPORT_S
from aegaeon_sidecar.engine.turn import Turn

PROMPT = [5, 17, 23, 42, 8, 99, 140, 7, 61, 12, 33]
COMPUTE = Path(compute.__file__)
AROUND = ("lanes.py", "switch.py", "state.py")  # as of every lane's command


class Walk:
    """`entries`: calls into compute.py from other files; `functions`: of engine/, in the order of their first calls."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.functions: dict[tuple[str, str], None] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or path.parent != COMPUTE.parent or path.name in AROUND:
            return
        if threading.current_thread().name != Lane.COMPUTE.value:
            return
        before = frame.f_back
        if path == COMPUTE and (before is None or before.f_code.co_filename != str(COMPUTE)):
            self.entries.append(frame.f_code.co_name)
        self.functions[path.name, frame.f_code.co_name] = None


@pytest.fixture
def walk() -> Iterator[Walk]:
    """Through what threads that begin during the test call."""
    walk = Walk()
    threading.setprofile(walk)
    yield walk
    threading.setprofile(None)


async def test_a_turn_comes_back_to_the_loop_for_a_steps_end_and_for_a_report_alone(scheduler: Rig, walk: Walk) -> None:
    async with inside(config(scheduler.folder), TorchBackend()):
        link = await ready(scheduler, scheduler.models["llama"])
        link.send(scheduler.open("r", "m", PROMPT, max_tokens=6))
        part = pb.PrefillPart(seq=seq("r"), tokens=99)
        await link.done(link.send(pb.Turn(model="m", prefill=[part], decode=[seq("r")], steps=99, slabs=8)))
    assert walk.entries == ["turn"]
    visits = [list(calls) for file, calls in groupby(walk.functions, lambda call: call[0]) if file == COMPUTE.name]
    assert [visit[-1][1] for visit in visits] == ["_next", "_complete", "_report"]


@pytest.mark.parametrize(("report_steps", "fewest", "most"), [(0, 4, 32), (3, 4, 32), (400, 1, 2)])
async def test_a_turn_is_reported_as_often_as_its_command_says(
    scheduler: Rig, folder: Path, report_steps: int, fewest: int, most: int
) -> None:
    async with inside(config(folder), TorchBackend()):
        link = await ready(scheduler, scheduler.models["llama"])
        link.send(scheduler.open("r", "m", PROMPT, max_tokens=99))
        await link.done(link.send(pb.Turn(model="m", prefill=[pb.PrefillPart(seq=seq("r"), tokens=99)], slabs=8)))
        turn = link.send(pb.Turn(model="m", decode=[seq("r")], steps=32, slabs=8, report_steps=report_steps))
        await link.done(turn)
    reports = [report.steps for report in link.steps[turn] if report.steps]
    assert sum(reports) == 32
    assert fewest <= len(reports) <= most


def test_a_report_is_due_after_its_steps_or_as_many_times_the_usual_time_and_at_once_when_a_sequence_ends() -> None:
    long = Turn.of(CommandId(1), commands.Turn(ModelName("m"), steps=64, report_steps=64)).progress
    long.steps = 63
    assert not long.due(8 * REPORT_S - 0.01)
    assert long.due(8 * REPORT_S)
    long.steps = 64
    assert long.due(0.0)
    long.steps, long.urgent = 1, True
    assert long.due(0.0)


FIELDS = {
    "model": ModelName("other"),
    "prefill": (PrefillPart(SeqId("r", 0), 4),),
    "decode": (SeqId("r", 0),),
    "steps": 3,
    "slabs": 2,
    "warm_up": True,
    "report_steps": 16,
}


@pytest.mark.parametrize("name", [field.name for field in fields(commands.Turn)])
def test_every_field_of_a_turn_command_reaches_the_turn(name: str) -> None:
    command = commands.Turn(ModelName("m"))
    assert name in FIELDS, f"add a value of {name} that is not its default to FIELDS of this file"
    changed = replace(command, **{name: FIELDS[name]})
    reached = Turn.of(CommandId(1), changed) != Turn.of(CommandId(1), command)
    assert reached, f"Turn.of in aegaeon_sidecar/engine/turn.py does not take {name} over"
