"""Memory accounting of one instance: the memory it reported, less grants that no report shows yet.

All grants come from here, so commands cannot race for memory. A load maps its slabs while other lanes report, so the
slabs that a report already shows as mapped are not deducted twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aegaeon_scheduler.core.domain import CommandId, Footprint, KvShape, Memory


def blocks_for(footprint: Footprint, tokens: int) -> int:
    """KV blocks that hold this many tokens."""
    return -(-tokens // footprint.kv_block_tokens)


def slabs_of(footprint: Footprint, blocks: int, slab_bytes: int) -> int:
    """The number of newly mapped slabs that certainly hold this many blocks (blocks may cross slab borders)."""
    if blocks <= 0:
        return 0
    border = 1 if slab_bytes % footprint.kv_block_bytes else 0
    return -(-blocks * footprint.kv_block_bytes // slab_bytes) + border


def least_slabs(footprint: Footprint, tokens: int, slab_bytes: int) -> int:
    """Slabs without which a sequence of this length cannot run, all alone: weights, KV, rounding of two grants."""
    return footprint.weight_slabs + slabs_of(footprint, blocks_for(footprint, tokens), slab_bytes) + 2


@dataclass(slots=True, eq=False, repr=False, init=False)
class Grant:
    """Memory that an in-flight command may still take: slabs of both tiers, and blocks of `shape` in mapped slabs."""

    id: CommandId
    grant: int
    promise: int
    host_grant: int
    shape: KvShape

    def __init__(self, id: CommandId) -> None:
        self.id = id
        self.grant = self.promise = self.host_grant = 0
        self.shape = KvShape("")


@dataclass(slots=True, eq=False, repr=False)
class Book:
    """Slabs and blocks of both tiers. `weights` is the sum of slabs of models known to be mapped."""

    slabs: int
    slab_bytes: int
    memory: Memory
    weights: int = 0
    exact: bool = True  # every resident model is known, so `weights` is all of them
    granted: int = 0  # slabs, KV only
    host_granted: int = 0
    promised: dict[KvShape, int] = field(default_factory=dict)
    shapes: dict[KvShape, int] = field(default_factory=dict)  # block bytes
    loads: dict[CommandId, tuple[int, dict[CommandId, int]]] = field(default_factory=dict)

    def report(self, memory: Memory) -> None:
        """Follow what the instance says."""
        self.memory = memory

    def free(self) -> int:
        """Slabs that may be granted now; negative while a load waits for an unload."""
        free = self.memory.slabs_free - self.granted
        return free - self._loads_ahead() if self.loads else free

    def _loads_ahead(self) -> int:
        """Slabs that outstanding loads will still take, beyond what their own unloads give back. What unloads give back
        beyond their load is granted once they are done: a turn that does not wait for them may run before.

        What a report shows already is its slabs less everything that is known to be mapped: loads under way raise
        that, unloads that are done but not yet reported done lower it.
        """
        ahead = sum(max(0, slabs - sum(pledge.values())) for slabs, pledge in self.loads.values())
        return max(0, ahead - self._unexplained())

    def _unexplained(self) -> int:
        memory = self.memory
        kv, margin = 0, 0
        for shape, blocks in memory.shapes.items():
            count = blocks.free_blocks + blocks.used_blocks
            if count:
                block_bytes = self.shapes.get(shape, self.slab_bytes)
                kv += -(-count * block_bytes // self.slab_bytes)
                margin += 1 if self.slab_bytes % block_bytes else 0
        slabs = self.slabs - self.weights - kv - margin - memory.slabs_free
        return slabs if self.exact else min(0, slabs)

    def blocks_free(self, shape: KvShape) -> int:
        """Blocks in mapped slabs that are not promised."""
        reported = self.memory.shapes.get(shape)
        return reported.free_blocks - self.promised.get(shape, 0) if reported else 0

    def slabs_for(self, footprint: Footprint, blocks: int, tight: bool = False) -> int:
        """Slabs to grant for this many blocks.

        Free blocks in mapped slabs are left out of the count: lanes would race for them. `tight` counts them, for when
        slabs alone do not reach; a command that loses the race is starved or fails, and is tried again.
        """
        if tight:
            blocks -= max(0, self.blocks_free(footprint.kv_shape))
        return slabs_of(footprint, blocks, self.slab_bytes)

    def grant_kv(self, issued: Grant, footprint: Footprint, blocks: int, tight: bool = False, spare: int = 0) -> int:
        """Promise blocks and `spare` slabs to a command; returns the slabs it may take."""
        shape = footprint.kv_shape
        self.shapes[shape] = footprint.kv_block_bytes
        slabs = self.slabs_for(footprint, blocks, tight) + spare
        if tight:
            promise = min(blocks, max(0, self.blocks_free(shape)))
            self.promised[shape] = self.promised.get(shape, 0) + promise
            issued.promise += promise
            issued.shape = shape
        self.granted += slabs
        issued.grant += slabs
        return slabs

    def grant_load(self, load: CommandId, slabs: int, unloads: dict[CommandId, int]) -> None:
        """A load, with what the unloads in its `after` give back."""
        self.loads[load] = (slabs, unloads)

    def pledged(self) -> set[CommandId]:
        """Unloads that outstanding loads count on."""
        return {unload for _, pledge in self.loads.values() for unload in pledge}

    def release_grant(self, issued: Grant) -> None:
        """The command is over: its grant is, from here on, part of the reports."""
        self.granted -= issued.grant
        self.host_granted -= issued.host_grant
        if issued.promise:
            self.promised[issued.shape] -= issued.promise
        issued.grant = issued.promise = issued.host_grant = 0
        if self.loads:
            self.loads.pop(issued.id, None)
            for _, pledge in self.loads.values():
                pledge.pop(issued.id, None)

    def host_room(self, footprint: Footprint, blocks: int) -> bool:
        """True when the host tier has room for a swap-out of this many blocks."""
        shape = self.memory.host_shapes.get(footprint.kv_shape)
        rest = blocks - (shape.free_blocks if shape and not self.host_granted else 0)
        return slabs_of(footprint, rest, self.slab_bytes) <= self.memory.host_slabs_free - self.host_granted

    def grant_host(self, issued: Grant, footprint: Footprint, blocks: int) -> None:
        """Set host slabs aside for a swap-out."""
        issued.host_grant = slabs_of(footprint, blocks, self.slab_bytes)
        self.host_granted += issued.host_grant
