"""Cached blocks are copied to the host before their memory is needed: what is copied when, and a failed copy."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from sidecar.rig import PATIENCE_S, SLAB, Link, Rig, config, inside, ready, seq

from aegaeon_native import EventTable, SlabPool
from aegaeon_proto.engine.commands import Unload
from aegaeon_proto.engine.ids import InstanceId
from aegaeon_proto.engine.reports import Memory, Report
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_sidecar.domain.monitor import Monitor
from aegaeon_sidecar.domain.program import Lane, Program
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.engine.lanes import Lanes
from aegaeon_sidecar.engine.outcome import Outcome
from aegaeon_sidecar.engine.state import Queued, State
from aegaeon_sidecar.kv import writeback_queue
from aegaeon_sidecar.kv.memory import KvMemory
from aegaeon_sidecar.kv.sequences import SequenceTable
from aegaeon_sidecar.kv.writeback import PIECE_BYTES, Writeback
from aegaeon_sidecar.kv.writeback_queue import WritebackQueue
from aegaeon_sidecar.memory.copier import Copier
from aegaeon_sidecar.memory.leases import Lending
from aegaeon_sidecar.memory.outside import Outside
from aegaeon_sidecar.memory.prefix import name_block
from aegaeon_sidecar.memory.tiers import Tier
from aegaeon_sidecar.weights.table import ModelTable

BLOCK, BLOCKS_OF_A_SLAB = 4096, 4
SHAPE = "s"
Bytes = NDArray[np.uint8]


# -- on a whole sidecar ----------------------------------------------------------------------------------------------


@pytest.fixture
def model(make_model: Callable[..., Path]) -> Path:
    return make_model("qwen2", max_position_embeddings=4096)


def prompt_of(number: int, tokens: int = 48) -> list[int]:
    return [5 + (number + 7 * i) % 300 for i in range(tokens)]


async def answer(scheduler: Rig, link: Link, name: str, prompt: list[int]) -> list[int]:
    """Eight tokens, computed in one turn."""
    link.send(scheduler.open(name, "m", prompt, max_tokens=8))
    part = pb.PrefillPart(seq=seq(name), tokens=len(prompt))
    await link.done(link.send(pb.Turn(model="m", prefill=[part], decode=[seq(name)], steps=9, slabs=40)))
    return await scheduler.received_tokens(name, 8)


async def written_back(engine: Engine) -> None:
    """Until no chain waits, and no copy is under way."""
    queue = engine.state.kv.sequences.writeback
    async with asyncio.timeout(PATIENCE_S):
        while queue.chains or queue.onto is not None:  # noqa: ASYNC110 - a lane copies, and announces nothing
            await asyncio.sleep(0.01)
    engine.check()


def evict_device(engine: Engine) -> None:
    """Nothing cached is left on the device: its memory is needed for weights."""
    with engine.state.monitor.changed:
        slabs = engine.state.kv.device.take(engine.state.kv.device.slabs_free)
        engine.state.kv.device.pool.give(slabs)


async def test_a_prompt_whose_beginning_was_evicted_from_the_device_is_continued_from_the_host(
    scheduler: Rig, folder: Path, model: Path
) -> None:
    """An answer that ended there, without any swap-out: its prompt and its own tokens are found, and tokens are the
    same."""
    head = prompt_of(0)
    async with inside(config(folder)) as engine:
        link = await ready(scheduler, model)
        engine.state.kv.prefix_reuse = False
        first = await answer(scheduler, link, "alone", head)
        again = await answer(scheduler, link, "alone-2", [*head, *first, *range(20, 40)])
        engine.state.kv.prefix_reuse = True
        await answer(scheduler, link, "one", head)
        await written_back(engine)
        evict_device(engine)
        assert await answer(scheduler, link, "two", [*head, *first, *range(20, 40)]) == again
        assert scheduler.tokens["two", 0][0].cached_tokens == 48
        assert link.memory.reuse.host_tokens == 48
        await written_back(engine)
        evict_device(engine)
        assert await answer(scheduler, link, "three", [*head, *first, *range(20, 40)]) == again
        assert link.memory.reuse.host_tokens == 48 + 64, "what was computed behind the part from the host is there, too"


async def test_a_host_tier_that_holds_little_keeps_what_is_worth_most_and_swap_outs_have_precedence(
    scheduler: Rig, folder: Path, model: Path
) -> None:
    async with inside(config(folder, memory={"host_kv_bytes": 2 * SLAB})) as engine:
        link = await ready(scheduler, model)
        tokens = {number: await answer(scheduler, link, f"cached-{number}", prompt_of(number)) for number in range(8)}
        await written_back(engine)
        assert engine.state.kv.host.slabs_free == 2, "reports count cached blocks as free"
        link.send(scheduler.open("parked", "m", prompt_of(50), max_tokens=100))
        part = pb.PrefillPart(seq=seq("parked"), tokens=48)
        await link.done(link.send(pb.Turn(model="m", prefill=[part], slabs=24)))
        await link.done(link.send(pb.SwapOut(seq=seq("parked"), epoch=1)))
        assert await answer(scheduler, link, "last", prompt_of(51))
        await written_back(engine)
        await link.done(link.send(pb.SwapIn(seq=seq("parked"), epoch=1, slabs=24)))
        evict_device(engine)
        for number in range(8):
            assert await answer(scheduler, link, f"again-{number}", prompt_of(number)) == tokens[number]


async def test_nothing_is_copied_where_prefix_reuse_is_disabled(scheduler: Rig, folder: Path, model: Path) -> None:
    async with inside(config(folder, memory={"prefix_reuse": False})) as engine:
        link = await ready(scheduler, model)
        await answer(scheduler, link, "one", prompt_of(0))
        await written_back(engine)
        assert engine.state.kv.host.pool.free == engine.state.kv.host.pool.total


# -- a piece ---------------------------------------------------------------------------------------------------------


class Pair:
    """Two tiers, a copier, and time that a test sets."""

    def __init__(self, folder: Path, device_slabs: int = 8, host_slabs: int = 8) -> None:
        self.now = 0.0
        slab = BLOCK * BLOCKS_OF_A_SLAB
        self.device, self.host = (
            Tier(name, SlabPool.private(name, slab, slabs), lambda: self.now)
            for name, slabs in (("device", device_slabs), ("host", host_slabs))
        )
        for tier in (self.device, self.host):
            tier.add_shape(SHAPE, BLOCK)
        self.monitor = Monitor()
        self.writeback = WritebackQueue(self.monitor)
        self.lending = Lending(folder / "x.leases")
        table = SequenceTable(self.device, self.host, self.lending, self.writeback)
        self.events = EventTable.private(8)
        self.copier = Copier("out", self.events)
        self.spare = Writeback(KvMemory(self.monitor, self.device, self.host, table), self.copier)

    def ended(self, text: str, block_s: float = 1.0) -> list[bytes]:
        """A sequence with a block for each letter, each filled with it, has ended on the device."""
        names: list[bytes] = []
        for letter in text:
            names.append(name_block(names[-1] if names else b"seed", [ord(letter)]))
        blocks, new = self.device.share(SHAPE, self.device.index(SHAPE).find(names), len(text), self.device.pool.total)
        for i in new.tolist():
            self.content(self.device, int(blocks[i]))[:] = ord(text[i])
        self.device.index(SHAPE).publish(names, blocks.tolist())
        self.device.release(SHAPE, blocks, len(text), block_s)
        with self.monitor.changed:
            self.writeback.add(SHAPE, names)
        return names

    def content(self, tier: Tier, block: int) -> Bytes:
        return as_bytes(tier.blocks(SHAPE).address + block * BLOCK, BLOCK)

    def copy(self) -> None:
        """All that waits."""
        while self.begin():
            self.spare.finish()

    def begin(self) -> bool:
        with self.monitor.changed:
            return self.spare.begin()

    def on_host(self, names: list[bytes]) -> str:
        """The letters of those that the host has."""
        blocks = sorted(self.host.index(SHAPE).find(names).items())
        return "".join(chr(int(self.content(self.host, block)[BLOCK - 1])) for _, block in blocks)

    def close(self) -> None:
        self.copier.close()
        self.device.close()
        self.host.close()
        self.lending.close()


def as_bytes(address: int, nbytes: int) -> Bytes:
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=np.uint8)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def test_what_the_host_has_is_not_copied_again(pair: Pair) -> None:
    pair.ended("abcdef")
    pair.copy()
    names = pair.ended("abcdefghi")
    assert pair.begin()
    assert pair.writeback.onto is not None
    assert len(pair.writeback.onto[1]) == 3
    pair.spare.finish()
    assert pair.on_host(names) == "abcdefghi"
    pair.host.check(0, {})


def test_an_eviction_waits_for_the_copy_that_reads_its_blocks(pair: Pair) -> None:
    names = pair.ended("abcdefgh")
    goes_on = pair.events.event()
    pair.copier._lanes[0].wait(goes_on)
    assert pair.begin()
    load = threading.Thread(target=lambda: pair.device.pool.give(pair.device.take(8)))
    load.start()
    load.join(0.2)
    assert load.is_alive()
    goes_on.set()
    load.join(20)
    assert not pair.device.index(SHAPE).find(names)
    pair.spare.finish()
    assert pair.on_host(names) == "abcdefgh"
    assert pair.host.value(SHAPE, np.array(list(pair.host.index(SHAPE).find(names).values()))).min() > 0.0


def test_blocks_behind_one_that_no_tier_has_are_not_copied(pair: Pair) -> None:
    names = pair.ended("abcdefgh")
    gone = pair.device.index(SHAPE).find(names)[2]
    pair.device.index(SHAPE).drop(np.array([gone], dtype=np.int32))
    pair.copy()
    assert pair.on_host(names) == "ab"


def test_a_use_on_the_device_counts_for_the_copy_on_the_host(pair: Pair) -> None:
    """Else a copy is evicted that looks old, and with its twin on the device all of it is lost."""
    often = pair.ended("abcd")
    once = pair.ended("wxyz")
    pair.copy()
    pair.now = 100.0
    pair.ended("abcd")
    pair.copy()
    pair.host.take(7)
    assert (pair.on_host(often), pair.on_host(once)) == ("abcd", "")


def test_a_full_host_takes_what_is_worth_more_alone(tmp_path: Path) -> None:
    pair = Pair(tmp_path, host_slabs=1)
    dear = pair.ended("abcd", block_s=5.0)
    pair.copy()
    cheap = pair.ended("wxyz", block_s=0.1)
    pair.copy()
    assert (pair.on_host(dear), pair.on_host(cheap)) == ("abcd", "")
    dearest = pair.ended("efgh", block_s=50.0)
    pair.copy()
    assert (pair.on_host(dear), pair.on_host(dearest)) == ("", "efgh")
    pair.host.check(0, {})
    pair.close()


def test_where_too_little_is_worth_less_nothing_leaves_the_host(tmp_path: Path) -> None:
    pair = Pair(tmp_path, host_slabs=2)
    cheap, dear = pair.ended("wxyz", block_s=0.1), pair.ended("abcd", block_s=5.0)
    pair.copy()
    between = pair.ended("efghijkl", block_s=1.0)
    pair.copy()
    assert [pair.on_host(names) for names in (cheap, dear, between)] == ["wxyz", "abcd", ""]
    pair.host.check(0, {})
    pair.close()


def test_a_copy_that_fails_leaves_the_blocks_on_the_device_and_nothing_on_the_host(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    names = pair.ended("abcdefgh")
    pair.copier.close()
    pair.copy()
    assert "not copied to the host" in caplog.text
    assert not pair.host.index(SHAPE).find(names)
    assert pair.host.blocks(SHAPE).used == 0
    assert len(pair.device.index(SHAPE).find(names)) == 8
    assert pair.device.reading is None
    pair.host.check(0, {})


def test_a_long_chain_is_copied_in_pieces(tmp_path: Path) -> None:
    slabs = 2 * PIECE_BYTES // (BLOCK * BLOCKS_OF_A_SLAB)
    pair = Pair(tmp_path, slabs, 2 * slabs)
    names = pair.ended("ab" * (PIECE_BYTES // BLOCK - 5))
    pair.copy()
    assert pair.on_host(names) == "ab" * (PIECE_BYTES // BLOCK - 5)
    pair.close()


def test_chains_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback_queue, "MOST_NAMES", 100)
    monitor = Monitor()
    queue = WritebackQueue(monitor)
    with monitor.changed:
        for number in range(10):
            queue.add(SHAPE, [bytes([number, i]) for i in range(30)])
    assert len(queue.chains) == 3
    assert queue.first().names[0] == bytes([7, 0]), "the newest stay"


# -- its lane --------------------------------------------------------------------------------------------------------


class Pieces:
    """Ten pieces of nothing."""

    def __init__(self) -> None:
        self.remaining = 10
        self.over = threading.Event()

    @property
    def pending(self) -> bool:
        return self.remaining > 0

    def begin(self) -> bool:
        self.remaining -= self.remaining > 0
        return not self.over.is_set()

    def finish(self) -> None:
        if not self.remaining:
            self.over.set()


class Quiet(State):
    """Without memory to report."""

    def memory(self) -> Memory:
        return Memory(0, 0)


def test_nothing_is_copied_out_ahead_while_weights_come_in() -> None:
    monitor, pieces, begun, goes_on = Monitor(), Pieces(), threading.Event(), threading.Event()
    state = Quiet(monitor, cast(KvMemory, None), ModelTable(monitor), Outside(0), Program(InstanceId("e")))

    def load(command: Queued) -> Outcome:
        begun.set()
        assert goes_on.wait(20)
        return Outcome()

    def post(command: Queued, report: Report) -> None:
        pass

    lanes = Lanes(state, load, post, lambda _: None, lambda: None, {Lane.KV_OUT: pieces})
    state.program.issue(Queued(1, Lane.WEIGHTS, (), Unload("m"), 0))
    lanes.start()
    assert begun.wait(20)
    assert pieces.remaining == 10
    goes_on.set()
    assert pieces.over.wait(20)
    with monitor.changed:
        monitor.stopping = True
        monitor.notify_lanes(state.program)
    assert lanes.join(20)


def test_copies_ahead_go_on_when_the_load_that_they_wait_for_is_cancelled_before_it_begins() -> None:
    monitor, pieces, begun = Monitor(), Pieces(), threading.Event()
    state = Quiet(monitor, cast(KvMemory, None), ModelTable(monitor), Outside(0), Program(InstanceId("e")))
    lanes = Lanes(state, lambda _: Outcome(), lambda *_: None, lambda _: None, lambda: None, {Lane.KV_OUT: pieces})
    state.program.issue(Queued(1, Lane.WEIGHTS, (), Unload("m"), 0))

    def copy() -> None:
        assert lanes._take(Lane.KV_OUT) is not None
        begun.set()

    lane = threading.Thread(target=copy, daemon=True)
    lane.start()

    def sleeps() -> bool:
        with monitor.changed:
            return bool(monitor.queued[Lane.KV_OUT]._waiters)

    while not sleeps():
        assert not begun.wait(0.01)
    with monitor.changed:
        state.program.fail(1)
        monitor.notify_lanes(state.program)
    assert begun.wait(20)
    assert pieces.remaining == 9
    lane.join(20)
