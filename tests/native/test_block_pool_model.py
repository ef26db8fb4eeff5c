"""BlockPools of several shapes over one SlabPool against a model that only counts, checked after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aegaeon_native import BlockPool, NativeError, OutOfSlabs, SlabPool

SLAB = 8192
SLABS = 10
SHAPES = (1024, 3000, 8192, 11000, 20000)


def positions(block: int, block_bytes: int) -> range:
    return range(block * block_bytes // SLAB, ((block + 1) * block_bytes - 1) // SLAB + 1)


class Model:
    """References by block, and whose content is kept."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.references: Counter[int] = Counter()
        self.kept: set[int] = set()

    @property
    def held(self) -> list[int]:
        return sorted(self.references.elements())

    @property
    def cached(self) -> set[int]:
        return self.kept - set(self.references)

    @property
    def held_positions(self) -> set[int]:
        return self.touched(self.references)

    @property
    def mapped(self) -> set[int]:
        return self.touched({*self.references, *self.kept})

    @property
    def free(self) -> int:
        """Blocks that are not held and lie in slabs that held ones touch."""
        held = self.held_positions
        count = SLABS * SLAB // self.block_bytes
        rest = (block for block in range(count) if block not in self.references)
        return sum(set(positions(block, self.block_bytes)) <= held for block in rest)

    def touched(self, blocks: Iterable[int]) -> set[int]:
        return {p for block in blocks for p in positions(block, self.block_bytes)}

    def drop(self, blocks: list[int]) -> None:
        self.references.subtract(blocks)
        self.references = +self.references


class BlockPools(RuleBasedStateMachine):
    shape = st.integers(0, len(SHAPES) - 1)

    def __init__(self) -> None:
        super().__init__()
        self.slabs = SlabPool.private("model", SLAB, SLABS)
        self.pools = [BlockPool(self.slabs, size, SLABS) for size in SHAPES]
        self.models = [Model(size) for size in SHAPES]

    @rule(shape=shape, count=st.integers(0, 9), grant=st.integers(0, 4))
    def allocate(self, shape: int, count: int, grant: int) -> None:
        pool, model = self.pools[shape], self.models[shape]
        before = (pool.used, pool.free, pool.mapped_slabs, pool.held_slabs, self.slabs.free)
        fits = pool.used + len(model.cached) + count <= pool.capacity
        need = pool.slabs_for(count) if fits else SLABS + 1
        try:
            blocks = pool.allocate(count, grant).tolist()
        except OutOfSlabs:
            assert need > min(grant, self.slabs.free)
            assert before == (pool.used, pool.free, pool.mapped_slabs, pool.held_slabs, self.slabs.free)
            return
        assert need <= grant
        assert len(set(blocks)) == count
        assert not set(blocks) & {*model.references, *model.kept}
        assert pool.held_slabs == before[3] + need
        model.references.update(blocks)

    @rule(shape=shape, grant=st.integers(0, 2), data=st.data())
    def retain(self, shape: int, grant: int, data: st.DataObject) -> None:
        pool, model = self.pools[shape], self.models[shape]
        known = sorted({*model.held, *model.kept})
        blocks = data.draw(st.lists(st.sampled_from(known), max_size=4)) if known else []
        need = len(model.touched(blocks) - model.held_positions)
        if need > grant:
            with pytest.raises(OutOfSlabs, match=f"need {need} more slabs"):
                pool.retain(blocks, grant)
            return
        pool.retain(blocks, grant)
        model.references.update(blocks)

    @rule(shape=shape, data=st.data())
    def release(self, shape: int, data: st.DataObject) -> None:
        pool, model = self.pools[shape], self.models[shape]
        blocks = self.some(shape, data)
        before = pool.mapped_slabs
        model.drop(blocks)
        assert pool.release(blocks) == before - len(model.mapped)

    @rule(shape=shape, data=st.data())
    def keep(self, shape: int, data: st.DataObject) -> None:
        blocks = self.some(shape, data)
        self.pools[shape].keep(blocks)
        self.models[shape].kept.update(blocks)

    @rule(shape=shape, data=st.data())
    def forget(self, shape: int, data: st.DataObject) -> None:
        pool, model = self.pools[shape], self.models[shape]
        kept = sorted(model.kept)
        blocks = data.draw(st.lists(st.sampled_from(kept))) if kept else []
        before = pool.mapped_slabs
        model.kept.difference_update(blocks)
        assert pool.forget(blocks) == before - len(model.mapped)

    @rule(shape=shape, data=st.data())
    def release_what_is_not_held(self, shape: int, data: st.DataObject) -> None:
        blocks = self.some(shape, data)
        count = self.models[shape].held.count(0)
        with pytest.raises(NativeError, match="block 0 is not held"):
            self.pools[shape].release([block for block in blocks if block] + [0] * (count + 1))

    def some(self, shape: int, data: st.DataObject) -> list[int]:
        held = self.models[shape].held
        order = data.draw(st.permutations(held))
        return list(order[: data.draw(st.integers(0, len(held)))])

    @invariant()
    def everything_is_conserved(self) -> None:
        self.slabs.check()
        taken: list[int] = []
        for pool, model in zip(self.pools, self.models, strict=True):
            pool.check()
            layout = pool.slabs
            assert {p for p, slab in enumerate(layout) if slab >= 0} == model.mapped
            assert pool.used == len(model.references)
            assert pool.references == model.references.total()
            assert set(pool.cached().tolist()) == model.cached
            assert set(pool.cached_positions().tolist()) == model.mapped - model.held_positions
            assert (pool.kept, pool.held_slabs) == (len(model.kept), len(model.held_positions))
            assert pool.free == model.free
            taken += [slab for slab in layout if slab >= 0]
        assert len(set(taken)) == len(taken) == SLABS - self.slabs.free

    def teardown(self) -> None:
        for pool in self.pools:
            pool.close()
        assert self.slabs.free == SLABS
        self.slabs.close()


TestBlockPools = BlockPools.TestCase
TestBlockPools.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("block_bytes", [1000, 4096, 8192])
def test_the_lowest_blocks_are_used_first_and_tail_slabs_become_free(block_bytes: int) -> None:
    slabs = SlabPool.private("tail", SLAB, 8)
    pool = BlockPool(slabs, block_bytes, 8)
    blocks = pool.allocate(pool.capacity, 8).tolist()
    assert blocks == list(range(pool.capacity))
    pool.release(blocks[1::2])
    pool.release(blocks[::2])
    assert slabs.free == 8
    assert pool.allocate(3, 8).tolist() == [0, 1, 2]


def test_partly_used_slabs_are_filled_before_new_ones_are_mapped() -> None:
    slabs = SlabPool.private("fill", SLAB, 8)
    pool = BlockPool(slabs, 1024, 8)
    blocks = pool.allocate(24, 3)
    pool.release(blocks[4:8])
    pool.release(blocks[20:])
    assert pool.slabs_for(8) == 0
    assert pool.allocate(8, 0).tolist() == [4, 5, 6, 7, 20, 21, 22, 23]


def test_blocks_are_allocated_as_arrays_and_freed_from_any_sequence() -> None:
    pool = BlockPool(SlabPool.private("kinds", SLAB, 2), 1024, 2)
    blocks = pool.allocate(4, 1)
    assert str(blocks.dtype) == "int32"
    pool.retain(tuple(blocks.tolist()))
    assert pool.release(blocks) == 0
    assert pool.release(list(blocks.tolist())) == 1


def test_a_closed_pool_frees_everything_and_refuses_further_use() -> None:
    slabs = SlabPool.private("closed", SLAB, 2)
    pool = BlockPool(slabs, 1024, 2)
    pool.allocate(9, 2)
    pool.close()
    pool.close()
    assert slabs.free == 2
    with pytest.raises(NativeError, match="closed"):
        pool.allocate(1, 1)


@pytest.mark.parametrize("count", [65, 1 << 40])
def test_more_blocks_than_the_range_holds_are_out_of_slabs(count: int) -> None:
    pool = BlockPool(SlabPool.private("many", SLAB, 16), 1024, 8)
    with pytest.raises(OutOfSlabs, match=f"{count} blocks asked for"):
        pool.allocate(count, 16)
    assert pool.used == 0
