"""The prefix index of one tier and KV shape: finds blocks by the hash chain of docs/engine-memory.md.

A block's name is the hash of the previous name and its own token ids, so equal names mean equal tokens from the first
on. Published blocks keep their content after their last owner releases them, until they are evicted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from os import urandom

import numpy as np

from aegaeon_native import BlockPool
from aegaeon_sidecar.domain.errors import MemoryBookError
from aegaeon_sidecar.memory.cache_blocks import Blocks, BlockValues, Noted, Values

Name = bytes
MOST_SALT_BYTES = 64
_NAME_BYTES = 16  # 2^64 blocks until two different ones may be expected to share a name


def name_block(before: Name, tokens: Sequence[int]) -> Name:
    """The name of the block with these token ids that follows `before` (a seed for the first)."""
    return blake2b(array("I", tokens).tobytes(), key=before, digest_size=_NAME_BYTES).digest()


def seed_of(content: str, config: bytes) -> Name:
    """The start of the name chain of a model's blocks. `content`: hash of its weights, "" when it is not known."""
    return blake2b(config, key=bytes.fromhex(content)[:64] or urandom(16), digest_size=_NAME_BYTES).digest()


def seed_with(before: Name, also: bytes) -> Name:
    """The start of a name chain that also depends on an adapter's seed, or on a salt.

    `also` has 64 bytes at most.
    """
    return blake2b(before, key=also, digest_size=_NAME_BYTES).digest()


class PrefixIndex:
    """The published blocks of a pool, and what each is worth. Guarded by the engine's lock."""

    def __init__(self, pool: BlockPool, slab_bytes: int) -> None:
        self._pool = pool
        self._blocks: dict[Name, int] = {}
        self._names: dict[int, Name] = {}
        self.values = BlockValues(pool, slab_bytes)

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, names: Sequence[Name]) -> dict[int, int]:
        """The blocks of those of these names that are known, by index."""
        known = ((i, self._blocks.get(name)) for i, name in enumerate(names))
        return {i: block for i, block in known if block is not None}

    def name_of(self, block: int) -> Name | None:
        """The name under which a block was published."""
        return self._names.get(block)

    def publish(self, names: Iterable[Name], blocks: Iterable[int]) -> None:
        """Held blocks that are full and will not be written again. A name that is known stays with its block."""
        fresh = [(n, b) for n, b in zip(names, blocks, strict=True) if n not in self._blocks and b not in self._names]
        for name, block in fresh:
            self._blocks[name] = block
            self._names[block] = name
        added = np.array([block for _, block in fresh], dtype=np.int32)
        self._pool.keep(added)
        self.values.add(added)

    def used(self, blocks: Blocks, now_s: float, block_s: float, *, again: bool = False) -> None:
        """A chain of blocks, from the first on, was in use just now; computing one takes `block_s`.

        `again`: it was found here, so that it was not computed again.
        """
        self.values.used(blocks, now_s, block_s, again=again)

    def value(self, blocks: Blocks, now_s: float) -> Values:
        """The value of keeping each block: uses x seconds to compute it again / age. The lowest is evicted first.

        A block without the ones before it is of no use, so the first of a chain are worth all that follows them.
        """
        return self.values.value(blocks, now_s)

    def noted(self, blocks: Blocks) -> Noted:
        """The uses, costs and last uses of published blocks."""
        return self.values.noted(blocks)

    def note(self, blocks: Blocks, noted: Noted) -> None:
        """Published blocks among these are worth what is noted of them elsewhere, where that is more."""
        self.values.note(blocks, noted)

    def level(self, other: PrefixIndex, names: Sequence[Name]) -> None:
        """Count a use of blocks that two tiers have in both: else a copy looks old while the other one is used."""
        own, copied = self.find(names), other.find(names)
        shared = own.keys() & copied.keys()
        blocks = np.array([own[i] for i in shared], dtype=np.int32)
        copies = np.array([copied[i] for i in shared], dtype=np.int32)
        self.note(blocks, other.noted(copies))
        other.note(copies, self.noted(blocks))

    def drop(self, blocks: Blocks) -> int:
        """Forget blocks; cached ones are free. Returns how many slabs went back to the pool."""
        for block in blocks.tolist():
            del self._blocks[self._names.pop(block)]
        self.values.drop(blocks)
        return self._pool.forget(blocks)

    def check(self) -> None:
        """Names and blocks agree, and with the pool. Raises MemoryBookError."""
        paired = all(self._names.get(block) == name for name, block in self._blocks.items())
        if not paired or len(self._names) != len(self._blocks) or self._pool.kept != len(self._names):
            raise MemoryBookError(
                f"{len(self._blocks)} names, {len(self._names)} blocks published, {self._pool.kept} kept by the pool"
            )
        lost = set(self._pool.cached().tolist()) - set(self._names)
        if lost:
            raise MemoryBookError(f"blocks {sorted(lost)} are cached under no name")
        if sorted(self._names) != self.values.published.tolist():
            raise MemoryBookError(f"{len(self._names)} blocks published, {len(self.values.published)} with a value")
        if not self.values.check():
            raise MemoryBookError("a slab's sums are not those of its blocks")
