"""The modelled memory of a sidecar: slabs, blocks by KV shape, two tiers. Blocks are packed: slabs follow counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from aegaeon_scheduler.core.domain import Footprint, KvShape, Memory, ShapeMemory
from aegaeon_simulator.engine.prefix import PrefixCache
from aegaeon_simulator.errors import WireViolationError


@dataclass
class Tier:
    """One tier; `used` blocks and `mapped` slabs by shape, `weights` slabs. Memory that is free holds `cache`."""

    slabs: int
    slab_bytes: int
    now: Callable[[], float] = lambda: 0.0
    weights: int = 0
    used: dict[KvShape, int] = field(default_factory=dict)
    mapped: dict[KvShape, int] = field(default_factory=dict)
    block_bytes: dict[KvShape, int] = field(default_factory=dict)
    free: int = field(init=False)  # slabs that nothing is mapped to
    cache: PrefixCache = field(init=False)
    _reported: dict[KvShape, ShapeMemory] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.free = self.slabs - self.weights
        self.cache = PrefixCache(self.slab_bytes, self.slabs * self.slab_bytes)

    def _slabs_for(self, shape: KvShape, blocks: int) -> int:
        return -(-blocks * self.block_bytes[shape] // self.slab_bytes)

    def take_weights(self, slabs: int) -> None:
        """Map a model's slabs."""
        if slabs > self.free:
            raise WireViolationError(f"a load needs {slabs} slabs, {self.free} are free")
        self.weights += slabs
        self.free -= slabs
        self.evict()

    def drop_weights(self, slabs: int) -> None:
        """Unmap a model's slabs."""
        self.weights -= slabs
        self.free += slabs

    def grow(self, footprint: Footprint, blocks: int, grant: int) -> int | None:
        """Allocate blocks; slabs taken, or None when the grant or the free blocks do not reach (nothing changes)."""
        shape = footprint.kv_shape
        self.block_bytes[shape] = footprint.kv_block_bytes
        used = self.used.get(shape, 0) + blocks
        extra = max(0, self._slabs_for(shape, used) - self.mapped.get(shape, 0))
        if extra > grant:
            return None
        if extra > self.free:
            raise WireViolationError(f"a grant of {grant} slabs was given out, only {self.free} are free")
        self.used[shape] = used
        self.mapped[shape] = self.mapped.get(shape, 0) + extra
        self.free -= extra
        self._reported = None
        self.evict()
        return extra

    @property
    def _room_bytes(self) -> int:
        """Memory that is not in use: of free slabs, and of free blocks in those that are mapped."""
        held = sum(mapped * self.slab_bytes - self.used[s] * self.block_bytes[s] for s, mapped in self.mapped.items())
        return self.free * self.slab_bytes + held

    def evict(self) -> None:
        """Evict cached blocks that exceed the memory which is free."""
        if self.cache.nbytes:
            self.cache.fit(self._room_bytes, self.now())

    def admit(self, blocks: int, block_bytes: int, value: float) -> bool:
        """Make room for content of which each block has this value; False where too little is worth less."""
        return self.cache.make_room(blocks * block_bytes, block_bytes, value, self._room_bytes, self.now())

    def shrink(self, footprint: Footprint, blocks: int) -> None:
        """Free blocks; slabs that empties go back to the pool."""
        shape = footprint.kv_shape
        self.used[shape] = self.used.get(shape, 0) - blocks
        if self.used[shape] < 0:
            raise WireViolationError(f"{shape}: more blocks freed than were used")
        mapped = self.mapped[shape]
        self.mapped[shape] = min(mapped, self._slabs_for(shape, self.used[shape]))
        self.free += mapped - self.mapped[shape]
        self._reported = None

    def shapes(self) -> dict[KvShape, ShapeMemory]:
        """Blocks by shape, as reported; the same object until something changes."""
        if self._reported is None:
            self._reported = {shape: self._shape(shape, mapped) for shape, mapped in self.mapped.items()}
        return self._reported

    def _shape(self, shape: KvShape, mapped: int) -> ShapeMemory:
        used = self.used[shape]
        return ShapeMemory(mapped * self.slab_bytes // self.block_bytes[shape] - used, used)


def report(device: Tier, host: Tier) -> Memory:
    """The memory report of a sidecar with these tiers."""
    return Memory(device.free, host.free, device.shapes(), host.shapes())
