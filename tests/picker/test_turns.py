"""Who works when on the event loop, and which connections are taken, on a clock that the test moves."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from aegaeon_picker.transport.admission import Admission
from aegaeon_picker.transport.limits import Limits, Rate, Reason
from aegaeon_picker.transport.turns import Turns


@dataclass
class Loop:
    """An event loop in small: what was asked for soon, round by round."""

    now: float = 0.0
    soon: deque[Callable[[], None]] = field(default_factory=deque)
    log: list[str] = field(default_factory=list)

    def round(self) -> float:
        """Seconds that it took."""
        began = self.now
        for _ in range(len(self.soon)):
            self.soon.popleft()()
        return self.now - began


@dataclass(eq=False)
class Worker:
    """Has so many seconds of work."""

    loop: Loop
    address: str
    left_s: float

    def work(self, until: float) -> bool:
        took_s = min(self.left_s, until - self.loop.now)
        self.loop.now += took_s
        self.left_s -= took_s
        self.loop.log.append(self.address)
        return self.left_s > 1e-9


def turns(loop: Loop) -> Turns:
    return Turns(loop.soon.append, lambda: loop.now)


def test_a_little_work_is_done_at_once() -> None:
    loop = Loop()
    assert not turns(loop).offer(Worker(loop, "a", 0.0001))
    assert loop.log == ["a"]


def test_long_work_yields_to_the_event_loop_every_few_milliseconds() -> None:
    loop = Loop()
    worker = Worker(loop, "a", 0.1)
    assert turns(loop).offer(worker)
    rounds = []
    while worker.left_s > 1e-9:
        rounds.append(loop.round())
    assert max(rounds) <= 0.005
    assert len(rounds) > 20


def test_a_hundred_ready_connections_do_not_block_the_event_loop() -> None:
    loop = Loop()
    shared = turns(loop)
    for number in range(100):
        shared.offer(Worker(loop, str(number), 0.0009))
    assert loop.now <= 0.005
    while loop.soon:
        assert loop.round() <= 0.005
    assert len(loop.log) == 100


def test_addresses_share_the_event_loop_fairly_however_many_connections_they_have() -> None:
    loop = Loop()
    shared = turns(loop)
    for _ in range(50):
        shared.offer(Worker(loop, "greedy", 1.0))
    shared.offer(Worker(loop, "modest", 0.01))
    loop.log.clear()
    while "modest" in shared._waiting:
        loop.round()
    assert loop.log.count("greedy") <= loop.log.count("modest") + 2


def test_connections_are_bounded_together_by_address_and_by_rate() -> None:
    doors = Admission(Limits(connections=3, connections_per_address=2, connection_rate=Rate(1, 3)))
    assert [doors.enter("a", 0) for _ in range(3)] == [None, None, Reason.CONNECTIONS]
    assert [doors.enter("b", 0) for _ in range(2)] == [None, Reason.CONNECTIONS]
    doors.leave("a", False, 0)
    assert [doors.enter("a", 0) for _ in range(1)] == [None]
    doors.leave("a", False, 0)
    assert doors.enter("a", 0) == Reason.CONNECTION_RATE
    assert doors.enter("a", 2) is None


def test_misbehaving_addresses_wait_longer_and_are_forgotten_later() -> None:
    doors = Admission(Limits(connection_rate=Rate(1, 20)))
    assert doors.enter("a", 0) is None
    doors.leave("a", True, 0)
    assert [doors.enter("a", 0) for _ in range(4)] == [None, None, None, Reason.CONNECTION_RATE]
    for _ in range(3):
        doors.leave("a", False, 0)
    doors.forget(3)
    assert [doors.enter("a", 3) for _ in range(3)] == [None, None, Reason.CONNECTION_RATE]
    for _ in range(2):
        doors.leave("a", False, 3)
    doors.forget(100)
    assert not doors._addresses


def test_a_defect_of_one_connection_takes_no_turn_from_others() -> None:
    loop = Loop()
    taken = turns(loop)
    assert taken.offer(Worker(loop, "a", 0.1))
    broken, other = Worker(loop, "b", 0.1), Worker(loop, "c", 0.002)
    assert all(map(taken.offer, (broken, other)))
    del broken.loop  # what it does next fails
    with pytest.raises(AttributeError):
        loop.round()
    while other.left_s > 1e-9:
        assert loop.soon
        loop.round()
