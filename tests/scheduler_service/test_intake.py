"""New requests come behind reports: while the loop is late they wait, then the tenants are admitted in turn."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import GatewayId
from aegaeon_scheduler.service import intake as module
from aegaeon_scheduler.service.intake import Intake
from aegaeon_scheduler.service.lag import LIMIT_S, Lag
from aegaeon_scheduler.service.sequences import Origin
from aegaeon_scheduler.service.throttle import PER_PASS, Throttle

ORIGIN = Origin(GatewayId("gw"), "unix:/sink", 1)


class Late(Lag):
    """As late as a test says."""

    late_s = 0.0

    def __init__(self) -> None:
        super().__init__(time.monotonic, Throttle())

    @property
    def seconds(self) -> float:
        return self.late_s


class Door:
    """An intake on a clock of its own, and what came out of it."""

    def __init__(self) -> None:
        self.lag = Late()
        self.now = 0.0
        self.admitted: list[str] = []
        self.refused: list[tuple[str, str]] = []
        self.intake = Intake(self.lag, lambda: self.now, self._admit, self._refuse)

    def _admit(self, origin: Origin, submit: gateway_pb2.Submit) -> None:
        self.admitted.append(submit.request)

    def _refuse(self, origin: Origin, submit: gateway_pb2.Submit, reason: str) -> None:
        self.refused.append((submit.request, reason))

    def offer(self, *requests: str, tenant: str = "", epoch: int = 1) -> None:
        for request in requests:
            choices = [gateway_pb2.Choice(choice=choice, epoch=epoch) for choice in range(2)]
            self.intake.offer(ORIGIN, gateway_pb2.Submit(request=request, tenant=tenant, choices=choices))

    async def look(self, seconds: float = 0.0) -> None:
        """So much later on its clock, it has looked again."""
        self.now += seconds
        await asyncio.sleep(3 * module._LOOK_S)


@pytest.fixture
async def door() -> Any:
    made = Door()
    yield made
    made.intake.stop()


async def test_while_the_loop_is_in_time_all_are_admitted_at_once(door: Door) -> None:
    door.offer("a", "b")
    assert door.admitted == ["a", "b"]


async def test_while_it_is_late_they_wait_and_those_that_go_on_do_not(door: Door) -> None:
    door.lag.late_s = 3 * LIMIT_S
    door.offer("a", "b")
    door.offer("begun", epoch=2)
    await door.look()
    assert (door.admitted, len(door.intake)) == (["begun"], 2)
    door.lag.late_s = 0.0
    door.offer("c")
    await door.look()
    assert (door.admitted, len(door.intake)) == (["begun", "a", "b", "c"], 0)


async def test_a_few_are_admitted_while_it_is_a_little_late_and_many_are_not(door: Door) -> None:
    door.lag.late_s = 1.5 * LIMIT_S
    door.offer("a", "b")
    assert door.admitted == []
    await door.look()
    assert door.admitted == ["a", "b"]
    door.offer(*(f"many{i}" for i in range(9)))
    await door.look()
    assert len(door.intake) == 9


async def test_what_waits_too_long_is_refused_with_the_reason(door: Door) -> None:
    door.lag.late_s = 10 * LIMIT_S
    door.offer(*(f"many{i}" for i in range(12)))
    await door.look(module.LONGEST_S + 0.1)
    assert door.refused == [(f"many{i}", "the scheduler is 500 ms late with what runs; try again") for i in range(4)]
    assert (door.intake.refused, len(door.intake)) == (4, 0)
    assert door.admitted == [f"many{i}" for i in range(4, 12)]


async def test_a_few_are_never_refused_however_late_it_is(door: Door) -> None:
    door.lag.late_s = 10 * LIMIT_S
    door.offer("a", "b")
    await door.look(module.LONGEST_S - 0.1)
    assert (door.admitted, len(door.intake)) == ([], 2)
    await door.look(0.2)
    assert (door.admitted, door.refused) == (["a", "b"], [])


async def test_a_tenant_with_many_requests_does_not_hold_up_another_with_few(door: Door) -> None:
    door.lag.late_s = 3 * LIMIT_S
    door.offer(*(f"many{i}" for i in range(100)), tenant="many")
    door.offer("few0", "few1", tenant="few")
    door.lag.late_s = 0.0
    await door.look()
    assert door.admitted[:4] == ["many0", "few0", "many1", "few1"]


async def test_without_room_the_tenant_with_most_of_it_loses_its_newest(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROOM", 10)
    door.lag.late_s = 3 * LIMIT_S
    door.offer(*(f"many{i}" for i in range(12)), tenant="many")
    assert [request for request, _ in door.refused] == ["many10", "many11"]
    door.offer("few0", "few1", tenant="few")
    assert [request for request, _ in door.refused] == ["many10", "many11", "many9", "many8"]
    assert len(door.intake) == 10


async def test_what_its_reader_leaves_or_its_gateway_submits_anew_waits_no_more(door: Door) -> None:
    door.lag.late_s = 3 * LIMIT_S
    door.offer("a", "b", "c")
    door.intake.cancel(ORIGIN.gateway, "a", ())
    door.intake.cancel(ORIGIN.gateway, "b", (0, 1))
    door.intake.cancel(ORIGIN.gateway, "c", (0,))
    door.intake.cancel(GatewayId("other"), "c", ())
    assert len(door.intake) == 1
    door.intake.forget(ORIGIN.gateway)
    assert len(door.intake) == 0


async def test_a_cancel_reaches_all_that_waits_of_a_request_and_looks_at_nothing_where_none_does(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    door.lag.late_s = 10 * LIMIT_S
    door.offer("twice", "admitted", "twice", "other")
    door.intake.cancel(ORIGIN.gateway, "twice", (0,))
    assert len(door.intake) == 4  # of both one choice is left
    door.intake.cancel(ORIGIN.gateway, "twice", ())
    assert len(door.intake) == 2
    door.lag.late_s = 0.0
    await door.look()
    assert (door.admitted, len(door.intake)) == (["admitted", "other"], 0)
    door.lag.late_s = 10 * LIMIT_S
    door.offer("waits")
    monkeypatch.setattr(module, "remove_choices", None)
    door.intake.cancel(ORIGIN.gateway, "admitted", ())
    assert len(door.intake) == 1


async def test_a_pass_of_the_loop_lets_some_through_and_the_rest_in_their_order() -> None:
    throttle, passed = Throttle(), list[int]()
    passes = 0

    async def enter(number: int) -> None:
        await throttle.enter()
        passed.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(100)]
    await asyncio.sleep(0)
    tasks[50].cancel()  # its stream ended while it waited
    while len(passed) < 99:
        before = len(passed)
        await asyncio.sleep(0)
        passes += 1
        assert len(passed) - before <= PER_PASS
    assert passed == [number for number in range(100) if number != 50]
    assert passes < 20


async def test_the_lag_is_what_reports_wait_also_while_they_wait() -> None:
    lag = Lag(time.monotonic, Throttle())
    assert (lag.seconds, lag.retry_after_s) == (0.0, 1.0)
    lag.start()
    try:
        async with asyncio.timeout(20):
            await asyncio.sleep(0.1)
            while lag.exceeded:  # noqa: ASYNC110  # on a loaded machine it may be
                await asyncio.sleep(0.01)
            time.sleep(3 * LIMIT_S)  # noqa: ASYNC251  # the loop is late
            assert lag.exceeded
            assert lag.retry_after_s > 2.0
            await asyncio.sleep(0.1)
            while lag.exceeded:  # noqa: ASYNC110  # it is a measure, not an event
                await asyncio.sleep(0.01)
    finally:
        await lag.stop()
    assert lag.seconds == 0.0


async def test_a_late_scheduler_refuses_what_is_new_handles_reports_and_says_so(
    serve: Any, brain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lag, "seconds", property(lambda _: 3 * LIMIT_S))
    monkeypatch.setattr(module, "_AT_ONCE", 0)  # one is many
    brain.script[events.Submitted] = lambda event: [commands.Accept(event.gateway, event.seq)]
    async with serve(brain, metrics_listen=None) as stack:
        gateway, sidecar = await stack.gateway(), await stack.sidecar()
        await gateway.submit("new")
        await gateway.submit("begun", epoch=2)
        assert (await gateway.next("accepted")).request == "begun"
        await sidecar.report(heartbeat={"memory": {"slabs_free": 9, "host_slabs_free": 9}})
        await brain.wait_for(events.MemoryReported)
        refused = await gateway.next("rejected")
        assert (refused.request, refused.code) == ("new", gateway_pb2.REJECT_CODE_OVERLOADED)
        assert refused.retry_after_s == pytest.approx(3.0)
        async for status in stack.status():
            assert (status.lag_s, status.intake, status.refused) == (3 * LIMIT_S, 0, 1)
        await gateway.submit("left")
        await gateway.send(cancel=gateway_pb2.CancelRequest(request="left"))
        await gateway.submit("again", epoch=2)
        assert (await gateway.next("accepted")).request == "again"
        assert stack.service.frontend.intake.refused == 1
        assert len(stack.service.frontend.intake) == 0
        assert [event.seq.request for event in brain.all_of(events.Submitted)] == ["begun", "again"]
