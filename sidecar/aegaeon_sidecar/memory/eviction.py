"""Eviction of cached blocks when memory is needed: the least valuable first, by slab or by block.

Pure functions over the state of pools and indices; `Tier` drops the blocks that they return. A block's value:
PrefixIndex.value. Blocks of most slabs are not looked at: bounds say what they are worth (cache_blocks.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from aegaeon_native import BlockPool
from aegaeon_sidecar.memory.cache_blocks import Blocks, Values
from aegaeon_sidecar.memory.prefix import PrefixIndex


@dataclass(frozen=True, slots=True)
class Shape:
    """The blocks of one KV shape and the index of what they hold."""

    pool: BlockPool
    index: PrefixIndex


def least_blocks(shape: Shape, blocks: Blocks, count: int, now_s: float) -> Blocks:
    """`count` of these blocks, the least worth first; all of them where there are fewer."""
    order: Blocks = blocks[np.argsort(shape.index.value(blocks, now_s), kind="stable")]
    return order[:count]


@dataclass(frozen=True, slots=True)
class _Slabs:
    """Positions that only cached blocks touch, by shape (a number) and position, and bounds of what these are worth."""

    shapes: list[Shape]
    owner: NDArray[np.int64]
    at: NDArray[np.int64]
    least: Values
    most: Values
    now_s: float

    @classmethod
    def of(cls, shapes: list[Shape], now_s: float) -> _Slabs:
        """The slabs of these shapes."""
        positions = [shape.pool.cached_positions().astype(np.int64) for shape in shapes]
        bounds = [shape.index.values.bounds(at, now_s) for shape, at in zip(shapes, positions, strict=True)]
        owner = np.repeat(np.arange(len(shapes)), [at.size for at in positions])
        least, most = (np.concatenate([getattr(each, side) for each in bounds]) for side in ("least", "most"))
        return cls(shapes, owner, np.concatenate(positions), least, most, now_s)

    def evaluate(self, which: NDArray[np.int64]) -> None:
        """Bounds of these are what they are worth."""
        for number in np.flatnonzero(np.bincount(self.owner[which])).tolist():
            own = which[self.owner[which] == number]
            self.least[own] = self.most[own] = self.shapes[number].index.values.over(self.at[own], self.now_s)

    def cheap(self, most: float, least: int) -> NDArray[np.int64]:
        """Slabs that may be worth less than `most`; none where fewer than `least` are."""
        if np.count_nonzero(self.most < most) < least:
            self.evaluate(np.flatnonzero((self.least < most) & (self.most >= most)))
        cheap = np.flatnonzero(self.least < most)
        return cheap if cheap.size >= least else cheap[:0]

    def cheapest(self, which: NDArray[np.int64], count: int, most: float) -> NDArray[np.int64]:
        """`count` of these, the least worth first, of what is worth less than `most`."""
        if which.size > count:
            which = which[self.least[which] <= np.partition(self.most[which], count - 1)[count - 1]]
        self.evaluate(which)
        which = which[self.least[which] < most]
        return which[np.lexsort((self.at[which], self.owner[which], self.least[which]))][:count]


def least_slabs(
    shapes: Mapping[str, Shape], count: int, now_s: float, most: float = inf, least: int = 0
) -> dict[str, Blocks]:
    """The blocks to drop, by shape, so that `count` slabs are free again, or as many as contain only cached blocks.

    `most`: slabs whose blocks are worth that much together, or more, stay. `least`: none where fewer slabs may go.
    """
    if not shapes:
        return {}
    names = sorted(shapes)
    slabs = _Slabs.of([shapes[name] for name in names], now_s)
    chosen = slabs.cheapest(slabs.cheap(most, least), count, most)
    by_shape = {name: slabs.at[chosen[slabs.owner[chosen] == number]] for number, name in enumerate(names)}
    return {name: shapes[name].index.values.published_over(at) for name, at in by_shape.items() if at.size}
