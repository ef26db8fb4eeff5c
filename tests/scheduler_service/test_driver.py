"""What the driver keeps for the core: timers, handles, states of models; and what it does when the core fails."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.config import ModelEntry, SourceEntry
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import CommandId, GatewayId, InstanceId, SeqId
from aegaeon_scheduler.service.alarm import Alarm
from aegaeon_scheduler.service.catalog import Catalog, spec_of
from aegaeon_scheduler.service.driver import Driver
from aegaeon_scheduler.service.handles import HandleBook
from aegaeon_scheduler.service.outbox import Outbox
from aegaeon_scheduler.service.sequences import Origin

INSTANCES = [InstanceId(name) for name in "ab"]
SEQS = [SeqId("r", n) for n in range(2)]


# ---- events and timers ----------------------------------------------------------------------------------------------


async def test_a_wake_brings_a_tick_at_its_time_and_not_before(brain: Any) -> None:
    at = time.monotonic() + 0.05
    brain.script[events.CatalogChanged] = lambda _: [commands.Wake(at), commands.Wake(at), commands.Wake(at + 0.5)]
    driver = Driver(brain, time.monotonic)
    driver.handle(events.CatalogChanged(()))
    await brain.wait_for(events.Tick, 2)
    driver.stop()
    ticks = [now for now, event in zip(brain.times, brain.received, strict=True) if isinstance(event, events.Tick)]
    assert len(ticks) == 2
    assert at <= ticks[0] < ticks[1]


async def test_an_earlier_wake_overtakes_a_later_one_and_a_stopped_alarm_is_silent() -> None:
    rung: list[float] = []
    first = asyncio.Event()

    def ring() -> None:
        rung.append(time.monotonic())
        first.set()

    alarm = Alarm(time.monotonic, ring)
    began = time.monotonic()
    alarm.set(began + 3)
    alarm.set(began + 0.02)
    await first.wait()
    alarm.stop()
    assert 0.02 <= rung[0] - began < 3
    await asyncio.sleep(began + 3.05 - time.monotonic())
    assert len(rung) == 1


async def test_repeated_wake_requests_wake_once_per_millisecond() -> None:
    rung: list[float] = []
    alarm = Alarm(time.monotonic, lambda: rung.append(time.monotonic()))
    at = time.monotonic() + 0.05
    for n in range(10_000):
        alarm.set(at + n * 1e-6)
    await asyncio.sleep(0.15)
    alarm.stop()
    assert 1 <= len(rung) <= 12


class WaitingLink:
    """To a sidecar that reads nothing yet."""

    base = 0

    def __init__(self) -> None:
        self.waiting: list[engine_pb2.Command] = []
        self.outbox: Outbox[engine_pb2.Command] = Outbox(1024)

    def send(self, command: engine_pb2.Command, complete: Any = None) -> None:
        self.waiting.append(command)
        self.outbox.put(command, complete)


async def test_opens_of_one_submission_share_its_prompt_until_they_are_written(brain: Any) -> None:
    link, prompt, count = WaitingLink(), list(range(1000, 5000)), 64
    brain.script[events.Submitted] = lambda e: [
        commands.Send(INSTANCES[0], CommandId(e.seq.choice + 1), commands.Open(e.seq, e.epoch, e.model), (), "")
    ]
    driver = Driver(brain, time.monotonic)
    driver.instances[INSTANCES[0]] = link
    choices = [gateway_pb2.Choice(choice=number, epoch=1, prefix=[number]) for number in range(count)]
    limits = model_pb2.Limits(max_tokens=8)
    submit = gateway_pb2.Submit(request="r", model="m", prompt=prompt, choices=choices, limits=limits)
    driver.submit(Origin(GatewayId("g"), "sink", 1), submit)
    driver.stop()
    assert all(kept.submit is submit for kept in driver.sequences.of_request("r").values())
    assert sum(command.ByteSize() for command in link.waiting) < submit.ByteSize()
    link.outbox.close()
    written = [command.open async for command in link.outbox]
    assert [list(one.prompt) for one in written] == [prompt] * count
    assert [list(one.prefix) for one in written] == [[number] for number in range(count)]


async def test_a_failed_core_gets_no_more_events(brain: Any) -> None:
    crashes: list[str] = []
    brain.script[events.Tick] = lambda _: {}[0]
    driver = Driver(brain, time.monotonic, crashed=lambda: crashes.append("crashed"))
    with pytest.raises(KeyError):
        driver.handle(events.Tick())
    driver.handle(events.CatalogChanged(()))
    assert crashes == ["crashed"]
    assert not brain.all_of(events.CatalogChanged)


async def test_observers_see_every_event_with_what_was_decided(brain: Any) -> None:
    seen: list[Any] = []
    wake = commands.Wake(time.monotonic() + 60)
    brain.script[events.Tick] = lambda _: [wake]
    driver = Driver(brain, time.monotonic, observers=[lambda *what: seen.append(what)])
    driver.handle(events.Tick())
    driver.stop()
    [(now, event, decided, seconds)] = seen
    assert (now, event, decided) == (brain.times[0], events.Tick(), [wake])
    assert 0 <= seconds < 60


# ---- handles --------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["swap out", "arrive", "fail", "close", "end", "lose"]),
        st.sampled_from(INSTANCES),
        st.sampled_from(SEQS),
    ),
    max_size=40,
)


@given(steps)
def test_a_handle_is_valid_from_its_report_until_it_is_released(history: list[Any]) -> None:
    """Against a model that keeps the newest SwapOut of each instance and sequence, and whether it was reported."""
    book, model = HandleBook(), {}
    for number, (what, instance, seq) in enumerate(history, 1):
        newest = model.get((instance, seq))
        if what == "swap out":
            book.expect(instance, CommandId(number), seq)
            model[instance, seq] = (number, False)
        elif what == "arrive" and newest:
            book.arrived(instance, CommandId(newest[0]), engine_pb2.KvHandle(kv_tokens=newest[0]))
            model[instance, seq] = (newest[0], True)
        elif what == "fail" and newest and not newest[1]:
            book.failed(instance, CommandId(newest[0]))
            del model[instance, seq]
        elif what == "close":
            book.closed(instance, seq)
            model.pop((instance, seq), None)
        elif what == "end":
            book.ended(seq)
            model = {key: value for key, value in model.items() if key[1] != seq}
        elif what == "lose":
            book.lost(instance)
            model = {key: value for key, value in model.items() if key[0] != instance}
        for place in INSTANCES:
            for one in SEQS:
                by, reported = model.get((place, one), (0, False))
                found = book.find(one, place, CommandId(by))
                assert (found is not None) == reported
                assert found is None or found.kv_tokens == by


def test_a_report_that_comes_after_the_end_leaves_nothing_behind() -> None:
    book = HandleBook()
    book.expect(INSTANCES[0], CommandId(1), SEQS[0])
    book.ended(SEQS[0])
    book.arrived(INSTANCES[0], CommandId(1), engine_pb2.KvHandle())
    assert len(book) == 0


# ---- outbox ---------------------------------------------------------------------------------------------------------


async def test_an_outbox_hands_out_in_order_and_ends_when_it_is_closed() -> None:
    box: Outbox[int] = Outbox(10)
    got: list[int] = []

    async def drain() -> None:
        got.extend([message async for message in box])

    task = asyncio.create_task(drain())
    for n in range(3):
        box.put(n)
    await asyncio.sleep(0)
    box.put(3)
    box.close()
    box.put(4)
    await task
    assert got == [0, 1, 2, 3]
    assert not box.overflowed


async def test_an_outbox_hands_out_all_that_waits_at_once_and_one_that_is_large_at_most() -> None:
    box: Outbox[list[str]] = Outbox(10)
    for name in "abcdefg":
        complete = (lambda message: message.append("completed")) if name == "e" else None
        box.put([name], complete, large=name == "a")
    box.close()

    assert [batch async for batch in box.batches(3)] == [
        [["a"]],
        [["b"], ["c"], ["d"]],
        [["e", "completed"]],
        [["f"], ["g"]],
    ]


def test_a_full_outbox_is_cleared_and_closed() -> None:
    box: Outbox[int] = Outbox(2)
    for n in range(5):
        box.put(n)
    assert (len(box), box.closed, box.overflowed) == (0, True, True)


# ---- catalog --------------------------------------------------------------------------------------------------------

FETCHING, CACHED, FAILED = (model_pb2.ModelPhase.Value(f"MODEL_PHASE_{p}") for p in ("FETCHING", "CACHED", "FAILED"))


def state(phase: Any, done: int = 0) -> model_pb2.ModelState:
    return model_pb2.ModelState(model="m", phase=phase, bytes_done=done, bytes_total=100, reason="why")


def catalog() -> tuple[Catalog, list[str]]:
    changes: list[str] = []
    entry = ModelEntry(name="m", source=SourceEntry(directory="/m"), ttft_s=1, tbt_s=0.1)
    return Catalog([entry], lambda: changes.append("changed")), changes


@pytest.mark.parametrize(
    ("first", "second", "best"),
    [
        (state(FAILED), state(CACHED), CACHED),
        (state(FETCHING), state(FAILED), FETCHING),
        (state(FAILED), state(FAILED), FAILED),
        (state(FETCHING), state(CACHED), CACHED),
    ],
)
def test_the_best_state_on_any_sidecar_is_the_models(
    first: model_pb2.ModelState, second: model_pb2.ModelState, best: Any
) -> None:
    book, _ = catalog()
    book.report(INSTANCES[0], first)
    book.report(INSTANCES[1], second)
    assert book.model("m").phase == best
    book.forget(INSTANCES[1])
    assert book.model("m").phase == first.phase


def test_of_two_fetches_the_furthest_is_shown() -> None:
    book, _ = catalog()
    book.report(INSTANCES[0], state(FETCHING, 70))
    book.report(INSTANCES[1], state(FETCHING, 30))
    assert (book.model("m").bytes_done, [s.bytes_done for s in book.fetching()]) == (70, [70])


def test_only_what_changes_what_gateways_see_is_announced() -> None:
    book, changes = catalog()
    book.report(INSTANCES[0], state(CACHED))
    book.report(INSTANCES[0], state(CACHED))
    book.report(INSTANCES[0], model_pb2.ModelState(model="withdrawn", phase=CACHED))
    book.forget(INSTANCES[1])
    assert len(changes) == 1
    book.forget(INSTANCES[0])
    assert len(changes) == 2


def test_a_change_of_a_model_makes_no_status_of_another_again() -> None:
    """A pool has thousands, and a list that adds them one by one would cost their square."""
    book, _ = catalog()
    before, spec = book.model("m"), ModelEntry(name="n", source=SourceEntry(directory="/n"), ttft_s=1, tbt_s=0.1)
    book.put(spec_of(spec))
    status = book.model("n")
    book.withdraw("n")
    assert book.model("m") is before
    assert book.model("n") != status
    assert [config.name for config in book.event().models] == ["m", "n"]
    book.drop("n")
    assert book.model("m") is before
    assert [config.name for config in book.event().models] == ["m"]
