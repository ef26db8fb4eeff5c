"""The program of lanes: order within a lane, fences between them, skips, and never a deadlock."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.engine.ids import InstanceId
from aegaeon_proto.engine.reports import CommandSkipped
from aegaeon_sidecar.domain.program import Item, Lane, Program

HERE = InstanceId("engine-0")
LANES = list(Lane)


def item(command: int, lane: Lane, *after: int) -> Item[str]:
    return Item(command, lane, after, "", 1)


@st.composite
def commands(draw: st.DrawFn) -> list[Item[str]]:
    made = []
    for command in range(1, draw(st.integers(1, 30)) + 1):
        after = draw(st.sets(st.integers(1, command - 1), max_size=3)) if command > 1 else set()
        made.append(item(command, draw(st.sampled_from(LANES)), *after))
    return made


@given(commands(), st.randoms(use_true_random=False), st.floats(0, 0.5))
def test_every_command_ends_once_in_order_and_after_its_fences(
    issued: list[Item[str]], rng: random.Random, failing: float
) -> None:
    program: Program[str] = Program(HERE)
    ended: dict[int, str] = {}
    order: dict[Lane, list[int]] = {lane: [] for lane in LANES}
    waiting, running = list(issued), []

    def skip(skips: list[CommandSkipped]) -> None:
        for one in skips:
            assert ended[one.because] in ("failed", "skipped")
            assert one.id not in ended
            ended[one.id] = "skipped"

    while len(ended) < len(issued):
        heads = [head for lane in LANES if (head := program.head(lane)) is not None]
        moves = ["issue"] * bool(waiting) + ["start"] * bool(heads) + ["end"] * bool(running)
        assert moves, "a deadlock"
        move = rng.choice(moves)
        if move == "issue":
            refused = program.issue(waiting.pop(0))
            skip([refused] if refused else [])
        elif move == "start":
            head = rng.choice(heads)
            assert all(ended.get(i) == "done" for i in head.after)
            head.running = True
            order[head.lane].append(head.id)
            running.append(head)
        else:
            head = running.pop(rng.randrange(len(running)))
            ended[head.id] = "failed" if rng.random() < failing else "done"
            skip(program.fail(head.id)) if ended[head.id] == "failed" else program.finish(head.id)
    assert all(ids == sorted(ids) for ids in order.values())


def test_a_later_id_in_after_is_refused() -> None:
    with pytest.raises(ValueError, match="earlier"):
        Program[str](HERE).issue(item(1, Lane.WEIGHTS, 2))


def test_waiting_is_detected_across_fences_and_lane_order() -> None:
    program: Program[str] = Program(HERE)
    program.issue(item(1, Lane.COMPUTE))
    program.issue(item(2, Lane.KV_IN, 1))
    program.issue(item(3, Lane.KV_IN))
    program.issue(item(4, Lane.WEIGHTS))
    assert program.waits_for(3, 1)
    assert not program.waits_for(4, 1)


def test_queued_commands_can_be_dropped_and_running_ones_stay() -> None:
    program: Program[str] = Program(HERE)
    for command in (1, 2):
        program.issue(item(command, Lane.WEIGHTS))
    first = program.head(Lane.WEIGHTS)
    assert first is not None
    first.running = True
    assert [one.id for one in program.drop_queued()] == [1]
    assert program.get(2) is None
