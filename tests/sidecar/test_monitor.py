"""Who is woken when something changes: threads that may go on, and no others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from aegaeon_proto.engine.commands import Unload
from aegaeon_proto.engine.ids import InstanceId
from aegaeon_proto.engine.reports import Memory, Report
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.domain.program import Item, Lane, Program
from aegaeon_sidecar.engine.lanes import Lanes
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.memory.outside import Outside
from aegaeon_sidecar.weights.table import ModelTable


class Counted(threading.Condition):
    """Counts how often who sleeps on it is woken."""

    woken = 0

    def wait(self, timeout: float | None = None) -> bool:
        woken = super().wait(timeout)
        self.woken += 1
        return woken


class Quiet(State):
    """Without memory to report."""

    def memory(self) -> Memory:
        return Memory(0, 0)


class World:
    """Four lanes whose commands do nothing."""

    def __init__(self) -> None:
        self.monitor = Monitor()
        self.monitor.queued = {lane: Counted(self.monitor.changed) for lane in Lane}  # type: ignore[arg-type]  # a lock
        table = ModelTable(self.monitor)
        self.state = Quiet(self.monitor, cast(KvMemory, None), table, Outside(0), Program(InstanceId("e")))
        self.device = threading.local()
        self.entered: dict[str, object] = {}
        self._over: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.lanes = Lanes(self.state, self._handle, self._post, lambda _: self._over.put(0), self._enter)

    def _enter(self) -> None:
        self.device.number = 1

    def _handle(self, command: Queued) -> Outcome:
        self.entered[threading.current_thread().name] = getattr(self.device, "number", None)
        return Outcome()

    def _post(self, command: Queued, report: Report) -> None:
        self._over.put(command.id)

    def run(self, command: int, lane: Lane, after: tuple[int, ...] = ()) -> None:
        """Issue it, and wait until it is over."""
        with self.monitor.changed:
            self.state.program.issue(Queued(command, lane, after, Unload("m"), 0))
            self.monitor.notify_lanes(self.state.program)
        while self._over.get(timeout=20) != command:
            pass

    def woken(self, lane: Lane) -> int:
        return cast(Counted, self.monitor.queued[lane]).woken


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    made.lanes.start()
    yield made
    with made.monitor.changed:
        made.monitor.stopping = True
        made.monitor.notify_lanes(made.state.program)
    assert made.lanes.join(20)


def test_a_command_wakes_its_lane_alone(world: World) -> None:
    """With one condition for all idle lanes each command wakes every one of them, twice."""
    for command in range(1, 31):
        world.run(command, Lane.COMPUTE)
    assert [world.woken(lane) for lane in (Lane.WEIGHTS, Lane.KV_OUT, Lane.KV_IN)] == [0, 0, 0]
    assert 1 <= world.woken(Lane.COMPUTE) <= 30


def test_the_end_of_a_command_wakes_the_lane_whose_command_waited_for_it(world: World) -> None:
    with world.monitor.changed:
        for item in (Queued(1, Lane.WEIGHTS, (), Unload("m"), 0), Queued(2, Lane.KV_IN, (1,), Unload("m"), 0)):
            world.state.program.issue(item)
        world.monitor.notify_lanes(world.state.program)
    world.run(3, Lane.KV_OUT, after=(2,))
    assert max(world.woken(lane) for lane in Lane) == 1
    assert world.woken(Lane.COMPUTE) == 0


def test_each_lane_begins_with_the_engines_device(world: World) -> None:
    """Without `enter` a lane of an engine on cuda:1 makes its streams and graphs on cuda:0, and they stay empty."""
    for command, lane in enumerate(Lane, start=1):
        world.run(command, lane)
    assert world.entered == {lane.value: 1 for lane in Lane}


def test_a_thread_whose_condition_does_not_hold_is_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one condition for all, each of these notifications would have it look for itself."""
    monitor, users, woken = Monitor(), [1], []
    command = Item(1, Lane.WEIGHTS, (), Unload("m"), 0)

    def wait() -> None:
        with monitor.changed:
            assert monitor.wait(lambda: not users, command)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not monitor._waiting:
        pass
    with monkeypatch.context() as counted:
        counted.setattr(monitor._waiting[0][1], "notify", lambda: woken.append(True))
        for _ in range(30):
            monitor.notify()
        with monitor.changed:
            users.clear()
        monitor.notify()
    monitor.notify()
    waiter.join(20)
    assert not waiter.is_alive()
    assert len(woken) == 1


@pytest.mark.parametrize("how", ["cancelled", "stopping"])
def test_who_waits_goes_on_when_the_command_is_cancelled_or_the_engine_stops(how: str) -> None:
    monitor, command = Monitor(), Item(1, Lane.WEIGHTS, (), Unload("m"), 0)
    ended: list[bool] = []

    def wait() -> None:
        with monitor.changed:
            ended.append(monitor.wait(lambda: False, command))

    waiter = threading.Thread(target=wait)
    waiter.start()
    with monitor.changed:
        setattr(command if how == "cancelled" else monitor, how, True)
        monitor.notify()
    waiter.join(20)
    assert ended == [False]
