"""Copy lanes as streams: order, events, cancelling, and no GIL held while copying or waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aegaeon_native import CopyLane, EventTable, NativeError


@pytest.fixture
def lane() -> Iterator[CopyLane]:
    lane = CopyLane("test", chunk_bytes=65536)
    yield lane
    lane.close()


@pytest.fixture
def events() -> Iterator[EventTable]:
    table = EventTable.private(16)
    yield table
    table.close()


def noise(nbytes: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)


def test_copies_run_in_order_and_the_event_is_set_after_them(lane: CopyLane, events: EventTable) -> None:
    source, middle, target = noise(3_000_001), np.zeros(3_000_001, np.uint8), np.zeros(3_000_001, np.uint8)
    event = events.event()
    lane.copy(middle.ctypes.data, source.ctypes.data, source.nbytes)
    lane.copy(target.ctypes.data, middle.ctypes.data, source.nbytes)
    lane.record(event)
    assert event.wait(30)
    assert np.array_equal(target, source)
    assert lane.bytes_copied == 2 * source.nbytes


@settings(max_examples=40, deadline=None)
@given(data=st.data(), block_bytes=st.integers(1, 70_000))
def test_blocks_land_where_their_ids_say(data: st.DataObject, block_bytes: int) -> None:
    places = st.lists(st.integers(0, 7), unique=True, min_size=1, max_size=8)
    to = np.array(data.draw(places), dtype=np.int32)
    origins = st.lists(st.integers(0, 7), min_size=len(to), max_size=len(to))
    origin = np.array(data.draw(origins), dtype=np.int32)
    source, target = noise(8 * block_bytes).reshape(8, -1), np.zeros((8, block_bytes), np.uint8)
    expected = target.copy()
    expected[to] = source[origin]
    lane = CopyLane("blocks", chunk_bytes=65536)
    lane.copy_blocks(target.ctypes.data, source.ctypes.data, block_bytes, to, origin)
    lane.close()
    assert np.array_equal(target, expected)


def test_a_lane_waits_for_the_event_of_another(lane: CopyLane, events: EventTable) -> None:
    source, target = noise(1000), np.zeros(1000, np.uint8)
    gate, done = events.event(), events.event()
    lane.wait(gate)
    lane.copy(target.ctypes.data, source.ctypes.data, 1000)
    lane.record(done)
    assert not done.wait(0.02)
    assert lane.pending == 3
    assert not target.any()
    gate.set()
    assert done.wait(30)
    assert np.array_equal(target, source)


def test_a_cancelled_copy_is_done_and_marked_truncated(lane: CopyLane, events: EventTable) -> None:
    source, cut, whole = noise(1000), np.zeros(1000, np.uint8), np.zeros(1000, np.uint8)
    gate, done = events.event(), events.event()
    lane.wait(gate)
    lane.copy(cut.ctypes.data, source.ctypes.data, 1000, tag=1)
    lane.copy(whole.ctypes.data, source.ctypes.data, 1000, tag=2)
    lane.record(done)
    lane.cancel(1)
    gate.set()
    assert done.wait(30)
    assert (lane.cancelled(1), lane.cancelled(2)) == (True, False)
    assert not cut.any()
    assert np.array_equal(whole, source)


def test_a_running_copy_stops_within_its_chunks(events: EventTable) -> None:
    lane = CopyLane("long", chunk_bytes=4096)
    source, target = np.ones(200 << 20, np.uint8), np.zeros(200 << 20, np.uint8)
    done = events.event()
    lane.copy(target.ctypes.data, source.ctypes.data, source.nbytes, tag=9)
    lane.record(done)
    while lane.bytes_copied == 0:
        done.wait(0.0001)
    lane.cancel(9)
    assert done.wait(30)
    copied = lane.bytes_copied
    assert lane.cancelled(9) == (copied < source.nbytes)
    assert copied < source.nbytes
    assert not target[copied:].any()
    lane.close()


def test_cancelling_a_completed_copy_has_no_effect(lane: CopyLane) -> None:
    source, target = noise(100), np.zeros(100, np.uint8)
    lane.copy(target.ctypes.data, source.ctypes.data, 100, tag=3)
    lane.synchronize()
    lane.cancel(3)
    assert not lane.cancelled(3)


def test_others_run_while_one_waits(events: EventTable) -> None:
    event = events.event()
    waiter = threading.Thread(target=event.wait, args=(30,))
    waiter.start()
    event.set()
    waiter.join(30)
    assert not waiter.is_alive()


def test_an_event_slot_is_freed_when_lane_and_python_have_released_it(lane: CopyLane, events: EventTable) -> None:
    gate, done = events.event(), events.event()
    lane.wait(gate)
    lane.record(done)
    del done
    assert events.in_use == 2
    gate.set()
    lane.synchronize()
    del gate
    assert events.in_use == 0


def test_running_out_of_event_slots_is_an_error() -> None:
    table = EventTable.private(2)
    held = [table.event(), table.event()]
    with pytest.raises(NativeError, match="all 2 event slots are in use"):
        table.event()
    held.pop()
    assert not table.event().done


def test_a_closed_lane_finishes_and_refuses_more() -> None:
    lane = CopyLane("closing")
    source, target = noise(5 << 20), np.zeros(5 << 20, np.uint8)
    lane.copy(target.ctypes.data, source.ctypes.data, source.nbytes)
    lane.close()
    lane.close()
    assert np.array_equal(target, source)
    with pytest.raises(NativeError, match="closed"):
        lane.copy(target.ctypes.data, source.ctypes.data, 1)


def test_invalid_copies_are_refused(lane: CopyLane) -> None:
    one, two = np.zeros(1, np.int32), np.zeros(2, np.int32)
    with pytest.raises(NativeError, match="2 blocks to, 1 blocks from"):
        lane.copy_blocks(1, 1, 8, two, one)
    with pytest.raises(NativeError, match="null address"):
        lane.copy(0, 1, 8)
    with pytest.raises(NativeError, match="tag 0"):
        lane.cancel(0)
