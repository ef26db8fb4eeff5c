"""Which slabs are evicted: those that a scan of all cached blocks would choose, with a look at few of them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aegaeon_native import OutOfSlabs, SlabPool
from aegaeon_sidecar.memory.cache_blocks import BlockValues, Positions, Values
from aegaeon_sidecar.memory.eviction import least_slabs
from aegaeon_sidecar.memory.tiers import Tier

SLAB = 8192
SHAPES = {"even": 1024, "odd": 1500, "large": 11000}


class Filled:
    """A tier of three shapes whose sequences come and go at times that a test sets."""

    def __init__(self, slabs: int) -> None:
        self.now = 0.0
        self.tier = Tier("host", SlabPool.private("eviction", SLAB, slabs), lambda: self.now)
        for name, size in SHAPES.items():
            self.tier.add_shape(name, size)
        self._serial = 0

    def end(self, shape: str, blocks: int, block_s: float) -> None:
        """A sequence with so many blocks has ended; all of them stay cached."""
        try:
            held = self.tier.allocate(shape, blocks, 99)
        except OutOfSlabs:
            return
        self._serial += 1
        self.tier.index(shape).publish([b"%d/%d" % (self._serial, i) for i in range(blocks)], held.tolist())
        self.tier.release(shape, held, blocks, block_s)

    def reuse(self, shape: str, first: int) -> None:
        """Cached blocks from this one on were used again."""
        self.tier.count_reuse(shape, self.tier.blocks(shape).cached()[first : first + 5], 0.5)

    def scan(self) -> list[tuple[float, str, int]]:
        """(value, shape, position) of all slabs that only cached blocks touch, from the blocks themselves."""
        return sorted(
            (self._value(name, at), name, at)
            for name in SHAPES
            for at in self.tier.blocks(name).cached_positions().tolist()
        )

    def over(self, shape: str, at: int) -> list[int]:
        """The cached blocks that touch a position."""
        size = SHAPES[shape]
        cached = self.tier.blocks(shape).cached().tolist()
        return [b for b in sorted(cached) if b * size < (at + 1) * SLAB and (b + 1) * size > at * SLAB]

    def _value(self, shape: str, at: int) -> float:
        total = 0.0
        for value in self.tier.index(shape).value(np.array(self.over(shape, at)), self.now).tolist():
            total += value
        return total

    def close(self) -> None:
        self.tier.check(0, {})
        self.tier.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["end", "end", "reuse", "evict"]),
        st.sampled_from(sorted(SHAPES)),
        st.integers(1, 20),
        st.sampled_from([0.0, 0.0005, 1.0, 7.0, 300.0]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, count=st.integers(1, 8), least=st.integers(0, 6), quantile=st.floats(0.0, 1.2))
def test_the_same_slabs_are_chosen_as_by_a_scan_of_all_cached_blocks(
    steps: list[tuple[str, str, int, float]], count: int, least: int, quantile: float
) -> None:
    filled = Filled(slabs=24)
    for what, shape, number, seconds in steps:
        filled.now += seconds
        if what == "end":
            filled.end(shape, number, 0.25)
        elif what == "reuse":
            filled.reuse(shape, number)
        else:
            filled.tier.pool.give(filled.tier.take(1 + number // 5))
        ranked = filled.scan()
        most = ranked[int(quantile * len(ranked))][0] if quantile * len(ranked) < len(ranked) else inf
        cheap = [each for each in ranked if each[0] < most]
        expected: dict[str, set[int]] = {}
        for _, name, at in cheap[:count] if len(cheap) >= least else ():
            expected.setdefault(name, set()).update(filled.over(name, at))
        chosen = least_slabs(filled.tier._shapes, count, filled.now, most, least)
        assert {name: set(blocks.tolist()) for name, blocks in chosen.items()} == expected
    filled.close()


class Looked:
    """Counts the slabs whose blocks are looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slabs = 0
        over = BlockValues._over

        def counted(values: BlockValues, positions: Positions) -> tuple[Positions, Values]:
            self.slabs += positions.size
            return over(values, positions)

        monkeypatch.setattr(BlockValues, "_over", counted)


@pytest.fixture
def full() -> Iterator[Filled]:
    """640 slabs with sequences of five blocks, used at a second each."""
    made = Filled(slabs=640)
    for _ in range(640 * 8 // 5):
        made.now += 1.0
        made.end("even", 5, 0.25)
        made.tier.index("even").values.settle()
    made.now += 60.0
    yield made
    made.close()


def test_a_full_tier_takes_nothing_that_is_worth_less_without_a_look_at_its_blocks(
    full: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = Looked(monkeypatch)
    for _ in range(20):
        full.now += 1.0
        assert full.tier.admit("even", 8, worth=1e-9) is None
    assert looked.slabs == 0
    assert full.tier.evicted == 0


def test_a_full_tier_makes_room_slab_by_slab_until_its_free_share_is_back(
    full: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, ahead = Looked(monkeypatch), 640 // 64
    for number in range(20):
        before = full.tier.evicted
        blocks = full.tier.admit("even", 8, worth=1e9)
        assert blocks is not None
        assert full.tier.evicted - before <= 2 * 8, "a call evicts two slabs at most"
        assert looked.slabs <= 12 * (number + 1)
        full.tier.release("even", blocks, 0, 0.0)
    assert full.tier.pool.free >= ahead


def test_a_block_whose_name_another_one_has_is_free_when_its_user_leaves() -> None:
    tier = Tier("host", SlabPool.private("host", 4096, 4), lambda: 100.0)
    tier.add_shape("s", 2048)
    index, name = tier.index("s"), b"a name".ljust(16)
    held, copy = (tier.allocate("s", 1, 4) for _ in range(2))
    index.publish([name], held.tolist())
    index.publish([name], copy.tolist())
    index.used(copy, 99.0, 0.25, again=True)
    index.note(copy, index.noted(held))
    tier.release("s", copy, 0, 0.0)
    tier.release("s", held, 1, 0.25)
    tier.check(0, {})
    tier.take(4)
    assert tier.evicted == 1
    tier.close()
