"""A tier is one pool of slabs and the blocks of every KV shape in it. The device is one tier, the host another.

Unreferenced blocks may stay cached (memory/prefix.py). Reports count them as free. When a grant needs their memory,
they are evicted, the least valuable first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import BlockPool, OutOfSlabs, SlabPool
from aegaeon_proto.engine.ids import KvShape
from aegaeon_proto.engine.reports import ShapeMemory
from aegaeon_sidecar.domain.errors import MemoryBookError
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.memory.eviction import Shape, least_blocks, least_slabs
from aegaeon_sidecar.memory.prefix import PrefixIndex

NO_BLOCKS: Blocks = np.empty(0, dtype=np.int32)
_AHEAD_SHARE = 1 / 64
"""of a tier that `admit` leaves free: other grants then rarely evict"""
_AT_ONCE = 2
"""times the slabs that are needed, which `admit` evicts at most: after grants have used what was free, it is brought
back in the time of several calls"""


@dataclass(slots=True)
class Owned:
    """Blocks of one shape that sequences own: `blocks`, an entry for each reference, and those that may still be
    written."""

    blocks: list[int] = field(default_factory=list)
    writable: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reading:
    """A copy that reads cached blocks. `wait` returns when it is over: before any of them is evicted."""

    kv_shape: str
    blocks: Blocks
    wait: Callable[[], None]


class Tier:
    """One pool of slabs with its BlockPools, one per KV shape, made when the shape is first seen and kept for ever."""

    def __init__(self, name: str, pool: SlabPool, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.pool = pool
        self.evicted = 0  # cached blocks that had to go
        self.reading: Reading | None = None
        self._clock = clock
        self._shapes: dict[str, Shape] = {}

    def add_shape(self, kv_shape: str, block_bytes: int) -> BlockPool:
        """The blocks of a shape; reserves their range of addresses the first time."""
        if kv_shape not in self._shapes:
            pool = BlockPool(self.pool, block_bytes, self.pool.total)
            self._shapes[kv_shape] = Shape(pool, PrefixIndex(pool, self.pool.slab_bytes))
        return self._shapes[kv_shape].pool

    def blocks(self, kv_shape: str) -> BlockPool:
        """The blocks of a shape that was added."""
        return self._shapes[kv_shape].pool

    def index(self, kv_shape: str) -> PrefixIndex:
        """The index of a shape's blocks."""
        return self._shapes[kv_shape].index

    # -- what is free -----------------------------------------------------------------------------------------------

    @property
    def slabs_free(self) -> int:
        """Slabs that nothing but cached blocks lies in."""
        lent = sum(shape.pool.mapped_slabs - shape.pool.held_slabs for shape in list(self._shapes.values()))
        return self.pool.free + lent

    def shapes(self) -> dict[KvShape, ShapeMemory]:
        shapes = list(self._shapes.items())  # a copy: the fetcher may add one meanwhile
        return {KvShape(name): ShapeMemory(shape.pool.free, shape.pool.used) for name, shape in shapes}

    # -- taking and giving back (engine's lock held) -----------------------------------------------------------------

    def take(self, count: int) -> list[int]:
        """Take `count` slabs of the pool. Raises OutOfSlabs."""
        self._evict_slabs(count)
        return self.pool.take(count)

    def allocate(self, kv_shape: str, count: int, grant: int) -> Blocks:
        """Allocate `count` free blocks, taking at most `grant` further slabs. Raises OutOfSlabs, and no block is held
        then."""
        pool = self._shapes[kv_shape].pool
        for make_room in (self._evict_some, self._evict_all):
            try:
                return np.asarray(pool.allocate(count, grant), dtype=np.int32)
            except OutOfSlabs:
                make_room(kv_shape, count, grant)
        return np.asarray(pool.allocate(count, grant), dtype=np.int32)

    def share(
        self, kv_shape: str, published: dict[int, int], count: int, grant: int
    ) -> tuple[Blocks, NDArray[np.intp]]:
        """`count` blocks: at the given indices the `published` blocks, at the others free ones.

        Returns them and the indices of the latter. Raises OutOfSlabs, and no block is held then.
        """
        pool = self._shapes[kv_shape].pool
        before, shared = pool.held_slabs, np.fromiter(published.values(), dtype=np.int32)
        pool.retain(shared, grant)
        try:
            fresh = self.allocate(kv_shape, count - len(published), grant - (pool.held_slabs - before))
        except OutOfSlabs:
            pool.release(shared)
            raise
        held = np.fromiter(published, dtype=np.intp)
        free = np.ones(count, dtype=np.bool_)
        free[held] = False
        blocks = np.empty(count, dtype=np.int32)
        blocks[held], blocks[free] = shared, fresh
        return blocks, np.flatnonzero(free)

    def release(self, kv_shape: str, blocks: Blocks, published: int, block_s: float) -> None:
        """Drop a reference to each; of the first `published` the content stays. See PrefixIndex.used for `block_s`."""
        shape = self._shapes[kv_shape]
        if published:
            shape.index.used(blocks[:published], self._clock(), block_s)
        shape.pool.release(blocks)

    def count_reuse(self, kv_shape: str, blocks: Blocks, block_s: float) -> None:
        """Note that these blocks, the beginning of a chain, were reused instead of computed."""
        self._shapes[kv_shape].index.used(blocks, self._clock(), block_s, again=True)

    def value(self, kv_shape: str, blocks: Blocks) -> NDArray[np.float64]:
        """The value of keeping each of these published blocks, as of now."""
        return self._shapes[kv_shape].index.value(blocks, self._clock())

    def admit(self, kv_shape: str, count: int, worth: float) -> Blocks | None:
        """Allocate `count` blocks for content of which each block is worth so much: what is worth less is evicted.

        None where there is not enough of that, and nothing is evicted. A share of the tier stays free for grants.
        """
        shape = self._shapes[kv_shape]
        pool = shape.pool
        shape.index.values.settle()  # while few blocks have changed
        ahead = int(self.pool.total * _AHEAD_SHARE)
        needed = self._slabs_of(pool, count)
        missing = needed + ahead - self.pool.free
        if missing > 0:
            most = worth * self.pool.slab_bytes / pool.block_bytes
            evicted = self._evict_least(min(missing, _AT_ONCE * needed), most, missing)
            if not evicted and self.pool.free < ahead:
                return None
        try:
            return np.asarray(pool.allocate(count, self.pool.total), dtype=np.int32)
        except OutOfSlabs:
            return None

    # -- eviction ---------------------------------------------------------------------------------------------------

    def _evict_some(self, kv_shape: str, count: int, grant: int) -> None:
        """Enough of what is worth least, if all goes well; `_evict_all` is for the rest."""
        shape = self._shapes[kv_shape]
        try:
            slabs = shape.pool.slabs_for(count)
        except OutOfSlabs:  # cached blocks have taken up the range
            slabs = min(grant, self._slabs_of(shape.pool, count))
        if 0 < slabs <= grant:
            self._evict_slabs(slabs)
        else:
            self._drop(kv_shape, least_blocks(shape, shape.pool.cached(ready=True), count, self._clock()))

    def _evict_all(self, kv_shape: str, count: int, grant: int) -> None:
        """Evict all cached blocks that a grant needs."""
        pool = self._shapes[kv_shape].pool
        self._drop(kv_shape, pool.cached())
        self._evict_slabs(min(grant, self._slabs_of(pool, count)))

    def _slabs_of(self, pool: BlockPool, count: int) -> int:
        """Slabs that surely hold so many blocks, which may cross their borders."""
        border = 1 if self.pool.slab_bytes % pool.block_bytes else 0
        return -(-count * pool.block_bytes // self.pool.slab_bytes) + border

    def _evict_slabs(self, count: int) -> None:
        """Evict until `count` slabs are free, or no slab contains only cached blocks."""
        missing = count - self.pool.free
        if missing > 0:
            self._evict_least(missing)

    def _evict_least(self, slabs: int, most: float = inf, least: int = 0) -> bool:
        """Evict what so many slabs hold, of those that contain only cached blocks and are worth less than `most`: if
        these are `least`, or more. True where any was evicted."""
        chosen = least_slabs(self._shapes, slabs, self._clock(), most, least)
        for kv_shape, blocks in chosen.items():
            self._drop(kv_shape, blocks)
        return bool(chosen)

    def _drop(self, kv_shape: str, blocks: Blocks) -> None:
        reading = self.reading
        if reading is not None and reading.kv_shape == kv_shape and np.isin(reading.blocks, blocks).any():
            reading.wait()
        self.evicted += blocks.size
        self._shapes[kv_shape].index.drop(blocks)

    # -- conservation -----------------------------------------------------------------------------------------------

    def check(self, other_slabs: int, owned: dict[str, Owned]) -> None:
        """Conservation. `other_slabs` are taken for something else (weights); `owned` is by KV shape.

        Raises MemoryBookError or NativeError when a slab or block is lost or owned twice.
        """
        self.pool.check()
        mapped = other_slabs
        for name, shape in self._shapes.items():
            pool, index = shape.pool, shape.index
            pool.check()
            index.check()
            mapped += pool.mapped_slabs
            self._check_owners(name, pool, index, owned.get(name, Owned()))
        if self.pool.total - self.pool.free != mapped:
            taken = self.pool.total - self.pool.free
            raise MemoryBookError(f"{self.name} tier: {taken} slabs taken, but {mapped} mapped into weights and blocks")

    def _check_owners(self, kv_shape: str, pool: BlockPool, index: PrefixIndex, owned: Owned) -> None:
        distinct = set(owned.blocks)
        if (pool.used, pool.references) != (len(distinct), len(owned.blocks)):
            raise MemoryBookError(
                f"{self.name} tier: {pool.used} blocks of {kv_shape} with {pool.references} references used, "
                f"sequences own {len(distinct)} with {len(owned.blocks)}"
            )
        for block in owned.writable:
            if owned.blocks.count(block) > 1 or index.name_of(block) is not None:
                raise MemoryBookError(f"{self.name} tier: block {block} of {kv_shape} is shared and may be written")

    def close(self) -> None:
        """Unmap everything. Only when no step or copy can run any more."""
        for shape in self._shapes.values():
            shape.pool.close()
        self.pool.close()
