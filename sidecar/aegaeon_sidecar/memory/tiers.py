"""A tier is one pool of slabs and, on it, the blocks of every KV shape. The device and the host have one each."""

from __future__ import annotations

from dataclasses import dataclass

from aegaeon_native import BlockPool, SlabPool
from aegaeon_sidecar.errors import MemoryBookError


@dataclass(frozen=True, slots=True)
class ShapeReport:
    """Blocks of one KV shape in slabs that are mapped already."""

    kv_shape: str
    free_blocks: int
    used_blocks: int


class Tier:
    """One pool of slabs with its BlockPools, one per KV shape, made when the shape is first seen and kept for ever."""

    def __init__(self, name: str, pool: SlabPool) -> None:
        self.name = name
        self.pool = pool
        self._shapes: dict[str, BlockPool] = {}

    def add_shape(self, kv_shape: str, block_bytes: int) -> BlockPool:
        """The blocks of a shape; reserves their range of addresses the first time."""
        if kv_shape not in self._shapes:
            self._shapes[kv_shape] = BlockPool(self.pool, block_bytes, self.pool.total)
        return self._shapes[kv_shape]

    def has_shape(self, kv_shape: str) -> bool:
        return kv_shape in self._shapes

    def blocks(self, kv_shape: str) -> BlockPool:
        """The blocks of a shape that was added."""
        return self._shapes[kv_shape]

    def shapes(self) -> list[ShapeReport]:
        shapes = list(self._shapes.items())  # a copy: the fetcher may add one meanwhile
        return [ShapeReport(name, blocks.free, blocks.used) for name, blocks in shapes]

    def check(self, other_slabs: int, owned: dict[str, int]) -> None:
        """Conservation. `other_slabs` are taken for something else (weights); `owned` counts blocks by KV shape.

        Raises MemoryBookError or NativeError when a slab or block is lost or owned twice.
        """
        self.pool.check()
        mapped = other_slabs
        for name, blocks in self._shapes.items():
            blocks.check()
            mapped += blocks.mapped_slabs
            due = owned.get(name, 0)
            if blocks.used != due:
                raise MemoryBookError(
                    f"{self.name} tier: {blocks.used} blocks of {name} used, {due} owned by sequences"
                )
        if self.pool.total - self.pool.free != mapped:
            taken = self.pool.total - self.pool.free
            raise MemoryBookError(f"{self.name} tier: {taken} slabs taken, but {mapped} mapped into weights and blocks")

    def close(self) -> None:
        """Unmap everything. Only when no step or copy can run any more."""
        for blocks in self._shapes.values():
            blocks.close()
        self.pool.close()
